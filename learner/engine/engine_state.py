"""An engine's state on disk, for any number of ranks: each writes its part, and reads its present part.

By torch's distributed checkpoints: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import warnings
from pathlib import Path
from typing import Any

MODEL, OPTIMIZER, SCHEDULE, RANDOM = "model", "optimizer", "schedule", "random"
State = dict[str, Any]
"""The parts of a checkpoint, by those names."""


def collect(engine: Any) -> State:
    """Collect weights, optimiser, schedule and random state, which the next step changes; called on each rank."""
    state = {MODEL: _model(engine), SCHEDULE: engine.lr_scheduler.state_dict(), _random(): _rng_states()}
    if engine.optimizer.state:  # torch would make some by a step, which counts as one
        state[OPTIMIZER] = _optimizer(engine)
    return state


def copy(state: State) -> State:
    """Copy a state into host memory, where the next step does not change it."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = DefaultStager(StagingOptions(False, False, False, False))
    try:
        copied: Any = stager.stage(state)
    finally:
        stager.close()
    return dict(copied)


def count_bytes(state: State) -> int:
    """Count the bytes of this rank's tensors in a state."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors: list[Any] = [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]
    parts = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return sum(part.numel() * part.element_size() for part in parts)


def write(state: State, path: Path, process_group: Any | None) -> None:
    """Write a state into a directory that every rank reaches; called on each rank of a group, None: on the only one."""
    from torch.distributed.checkpoint import state_dict_saver

    no_dist = process_group is None
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # it is not: there is one rank
    state_dict_saver.save(state, checkpoint_id=path, process_group=process_group, no_dist=no_dist)


def load(engine: Any, path: Path) -> None:
    """Load a state that `write` wrote with any number of ranks; every rank must call this.

    The optimiser's learning rate and other numbers stay those of the engine, whose settings may have changed.
    """
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    names = {name.partition(".")[0] for name in FileSystemReader(path).read_metadata().state_dict_metadata}
    numbers = [
        {name: value for name, value in group.items() if name != "params"} for group in engine.optimizer.param_groups
    ]
    rates = list(engine.lr_scheduler.base_lrs)
    state = {MODEL: _model(engine), SCHEDULE: engine.lr_scheduler.state_dict()}
    if OPTIMIZER in names:
        state[OPTIMIZER] = _optimizer(engine)
    if _random() in names:
        state[_random()] = _rng_states()
    state_dict_loader.load(state, checkpoint_id=path)
    set_model_state_dict(engine.module, state[MODEL])
    if OPTIMIZER in names:
        set_optimizer_state_dict(engine.module, engine.optimizer, state[OPTIMIZER])
    engine.lr_scheduler.load_state_dict(state[SCHEDULE])
    _set_rates(engine, numbers, rates)
    if _random() in names:
        _restore_rng(state[_random()])


def _set_rates(engine: Any, numbers: list[dict[str, Any]], rates: list[float]) -> None:
    """Give each group of parameters its numbers, and the rate that the schedule has now for its first rate."""
    scheduler = engine.lr_scheduler
    scheduler.base_lrs = rates
    factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    scheduler._last_lr = [rate * factor for rate, factor in zip(rates, factors, strict=True)]
    for group, values, rate in zip(engine.optimizer.param_groups, numbers, scheduler._last_lr, strict=True):
        group |= {**values, "lr": rate}


def _model(engine: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return dict(get_model_state_dict(engine.module))


def _optimizer(engine: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    return dict(get_optimizer_state_dict(engine.module, engine.optimizer))


def _random() -> str:
    """Name the random state of this rank; a rank that has none saved keeps that of its seed."""
    import torch.distributed as dist

    return f"{RANDOM}{dist.get_rank()}"


def _rng_states() -> dict[str, Any]:
    import torch

    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _restore_rng(generators: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(generators["cpu"])
    if "cuda" in generators:
        torch.cuda.set_rng_state(generators["cuda"])
