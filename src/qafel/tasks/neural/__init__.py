"""tasks/neural."""
