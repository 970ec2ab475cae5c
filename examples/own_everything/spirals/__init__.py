"""Everything of a run's that can be your own: a task, a quantizer, and two parts of the server."""
