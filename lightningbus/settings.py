"""The settings of a run file as classes, for `lightningbus.train` and others: an editor completes and checks them.

`RunSettings` is a whole run file, and the other classes are its sections and what these contain. They are the classes
that validate run files: docs/settings.md describes each field.
"""

from lightningbus.api.options import document_fields
from lightningbus.auditor.settings import AuditorSettings
from lightningbus.bus.streams.sizes import StreamSizes
from lightningbus.common.token_price import TokenPrice
from lightningbus.graders.settings import GraderSettings, JudgeSettings, NamedGraderSettings
from lightningbus.inference.settings import AdapterSettings, InferenceSettings
from lightningbus.learner.settings.algorithm import (
    ActorSettings,
    AirRule,
    AlgorithmSettings,
    CreditSettings,
    CriticSettings,
    LoraSettings,
    OptimSettings,
    OverlongBufferSettings,
    RolloutCorrectionSettings,
    TaskSelectionSettings,
    TaskSet,
)
from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.learner.settings.learner import LearnerSettings, StalenessSettings
from lightningbus.learner.settings.loss_parts import (
    LossWeights,
    PreferenceSettings,
    SupervisedSettings,
    TeacherList,
    TeacherSettings,
)
from lightningbus.learner.settings.verl import VerlSettings
from lightningbus.learner.settings.weights import BroadcastSettings, CanarySettings, WeightSettings
from lightningbus.run.settings.budget import BudgetSettings
from lightningbus.run.settings.evaluation import EvalSettings, SuiteSettings
from lightningbus.run.settings.optimize import OptimizeSettings, PromptSettings, ReflectionSettings
from lightningbus.run.settings.run_file import BusSettings, RunSettings
from lightningbus.runners.settings import EndpointSettings, RunnerSettings, WorkspaceSettings
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_source import NamedTaskSource, TaskSource
from lightningbus.trackers.settings import (
    JsonlSettings,
    MlflowSettings,
    TensorBoardSettings,
    TrackerSettings,
    TrackioSettings,
    WandbSettings,
)

__all__ = [
    "ActorSettings",
    "AdapterSettings",
    "AirRule",
    "AlgorithmSettings",
    "AuditorSettings",
    "BroadcastSettings",
    "BudgetSettings",
    "BusSettings",
    "CanarySettings",
    "CreditSettings",
    "CriticSettings",
    "EndpointSettings",
    "EngineSettings",
    "EvalSettings",
    "GraderSettings",
    "InferenceSettings",
    "JsonlSettings",
    "JudgeSettings",
    "LearnerSettings",
    "LoraSettings",
    "LossWeights",
    "MlflowSettings",
    "NamedGraderSettings",
    "NamedTaskSource",
    "OptimSettings",
    "OptimizeSettings",
    "OverlongBufferSettings",
    "PreferenceSettings",
    "PromptSettings",
    "ReflectionSettings",
    "RolloutCorrectionSettings",
    "RunSettings",
    "RunnerSettings",
    "StalenessSettings",
    "StoreSettings",
    "StreamSizes",
    "SuiteSettings",
    "SupervisedSettings",
    "TaskSelectionSettings",
    "TaskSet",
    "TaskSource",
    "TeacherList",
    "TeacherSettings",
    "TensorBoardSettings",
    "TokenPrice",
    "TrackerSettings",
    "TrackioSettings",
    "VerlSettings",
    "WandbSettings",
    "WeightSettings",
    "WorkspaceSettings",
]

for _name in __all__:
    document_fields(globals()[_name])
