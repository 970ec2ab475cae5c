"""deployment/client."""
