"""Custom parts of a run: a task, a quantizer, and two parts of the server."""
