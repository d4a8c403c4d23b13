"""Python imports this at its start: it puts the engine's faults into every process of vLLM, after our vllm_plugin."""

from lightningbus.inference.engine import vllm_plugin

register = vllm_plugin.register


def register_with_faults() -> None:
    """What vLLM calls in each of its processes."""
    register()
    from tests.serving_faults.engine import install

    install()


vllm_plugin.register = register_with_faults
