"""deployment/broker."""
