"""Python imports this at its start: it puts the engine's faults into every process of vLLM, after our plugin."""

from lightningbus.inference.engine import plugin

register = plugin.register


def register_with_faults() -> None:
    """What vLLM calls in each of its processes."""
    register()
    from tests.serving_faults.engine import install

    install()


plugin.register = register_with_faults
