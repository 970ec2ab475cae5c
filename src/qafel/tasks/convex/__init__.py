"""tasks/convex."""
