"""deployment/server."""
