"""Train any LLM agent by reinforcement learning, over an event bus.

``import lightningbus as lb`` is the API for Python and notebooks: `train`, `evaluate`, `serve`, `connect`, their async
forms, and what they return. Importing it loads nothing else; each name is loaded when it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightningbus import settings
    from lightningbus.analysis.transcript import Transcript
    from lightningbus.api.blocking import Session, connect, evaluate, serve, train
    from lightningbus.api.evaluation_job import aevaluate, aserve
    from lightningbus.api.evaluation_result import EvaluationResult
    from lightningbus.api.sessions.async_session import AsyncSession, aconnect
    from lightningbus.api.sessions.reward_curve import RewardCurve
    from lightningbus.api.sessions.table import Table
    from lightningbus.api.settings import TrainSettings
    from lightningbus.api.train_result import TrainResult
    from lightningbus.api.training import RunInterrupted, atrain
    from lightningbus.api.training_steps import TrainingSteps, atrain_steps
    from lightningbus.run.errors import UserError
    from lightningbus.run.evaluation.evaluation import Evaluation
    from lightningbus.run.jobs.callbacks import Alert, Callback, Change, Step

_MODULES = {
    "train": "lightningbus.api.blocking",
    "atrain": "lightningbus.api.training",
    "atrain_steps": "lightningbus.api.training_steps",
    "TrainingSteps": "lightningbus.api.training_steps",
    "RunInterrupted": "lightningbus.api.training",
    "settings": "lightningbus.settings",
    "TrainSettings": "lightningbus.api.settings",
    "Callback": "lightningbus.run.jobs.callbacks",
    "Change": "lightningbus.run.jobs.callbacks",
    "Step": "lightningbus.run.jobs.callbacks",
    "Alert": "lightningbus.run.jobs.callbacks",
    "TrainResult": "lightningbus.api.train_result",
    "evaluate": "lightningbus.api.blocking",
    "aevaluate": "lightningbus.api.evaluation_job",
    "serve": "lightningbus.api.blocking",
    "aserve": "lightningbus.api.evaluation_job",
    "EvaluationResult": "lightningbus.api.evaluation_result",
    "Evaluation": "lightningbus.run.evaluation.evaluation",
    "connect": "lightningbus.api.blocking",
    "Session": "lightningbus.api.blocking",
    "aconnect": "lightningbus.api.sessions.async_session",
    "AsyncSession": "lightningbus.api.sessions.async_session",
    "Table": "lightningbus.api.sessions.table",
    "RewardCurve": "lightningbus.api.sessions.reward_curve",
    "Transcript": "lightningbus.analysis.transcript",
    "UserError": "lightningbus.run.errors",
}
"""Name -> the module of this package that has it."""

__all__ = [
    "Alert",
    "AsyncSession",
    "Callback",
    "Change",
    "Evaluation",
    "EvaluationResult",
    "RewardCurve",
    "RunInterrupted",
    "Session",
    "Step",
    "Table",
    "TrainResult",
    "TrainSettings",
    "TrainingSteps",
    "Transcript",
    "UserError",
    "aconnect",
    "aevaluate",
    "aserve",
    "atrain",
    "atrain_steps",
    "connect",
    "evaluate",
    "serve",
    "settings",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lightningbus")
    if name not in _MODULES:
        raise AttributeError(f"module 'lightningbus' has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        from lightningbus.common.missing_modules import describe_missing_module

        raise ImportError(f"lightningbus.{name} cannot be used: {describe_missing_module(error.name)}") from error
    globals()[name] = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
