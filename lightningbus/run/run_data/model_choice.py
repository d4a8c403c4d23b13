"""Choice of the model that a command is about, where it is not named."""

from collections.abc import Sequence

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import list_models
from lightningbus.run.errors import UserError
from lightningbus.schemas.subjects import DEFAULT_POLICY


def choose_model(named: str | None, models: Sequence[str], option: str = "--model") -> str:
    """Return the model that is named, else the only one there is; raises `UserError` where there are several. Pure."""
    if named is not None:
        return named
    if len(models) > 1:
        raise UserError(f"{option}: there are several models, name one of {', '.join(models)}")
    return models[0] if models else DEFAULT_POLICY


async def choose_model_on_bus(named: str | None, bus: Bus) -> str:
    """Choose among the models that have versions on a bus, see `choose_model`."""
    return named if named is not None else choose_model(named, await list_models(bus))
