"""A run from a configuration, as the command line makes it."""

from qafel.simulator import simulate


def run(config, out, listeners=(), *, task=None, **options):
    """Simulate what the configuration says; write the run directory; return its summary."""
    options = {"overwrite": not options.get("resume"), "check": False, **options}
    return simulate(**config.arguments(task), out=out, listeners=listeners, **options).summary
