"""Alerts of a learner about its training: problems that its steps show, and task sets that give nothing to train on."""

import logging
from collections import deque
from collections.abc import Mapping

from nats.errors import Error as NatsError

from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.alerts.table import NUM_TRAINING_STEPS, describe
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.learner.findings import Metrics, find_problems
from lightningbus.learner.mismatch import PolicyAgreement
from lightningbus.learner.settings.learner import LearnerSettings

log = logging.getLogger(__name__)
AGREEMENT = "agreement/"
"""Beginning of the metrics that compare engine and learner."""


class TrainingAlerts:
    """Publishes an alert when it begins, and again when it is over."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._publisher = AlertPublisher(bus, f"training:{settings.run}:{settings.model}")
        self._settings = settings
        self._compares_engines = PolicyAgreement(settings).has_bound
        self._recent: deque[Metrics] = deque(maxlen=NUM_TRAINING_STEPS)
        self._problems: dict[str, str] = {}
        self._start_alerts: dict[str, str] = {}
        self.sentences: dict[str, str] = {}
        """Sentences of the alerts that hold now, by cause."""

    async def restore(self) -> None:
        """Take over the alerts that an earlier start of this learner left open."""
        try:
            await self._publisher.restore()
        except (BusError, NatsError) as error:
            log.warning("alerts of an earlier start cannot be read, and stay open: %s", error)
        self._problems = self.sentences = self._publisher.firing

    async def announce(self, rule: str, **values: object) -> None:
        """Publish an alert about the start, which lasts until the first step."""
        self._start_alerts = {rule: self._word(describe(rule, **values))}
        await self.update({})

    def add_step(self, metrics: Metrics) -> None:
        """Look at the metrics of a step that was made; `update` publishes the findings."""
        self._start_alerts = {}
        if not self._compares_engines:
            metrics = {name: value for name, value in metrics.items() if not name.startswith(AGREEMENT)}
        self._recent.append(metrics)
        problems = find_problems(list(self._recent), self._problems, self._settings.max_steps)
        self._problems = {rule: self._word(describe(rule, **values)) for rule, values in problems.items()}

    async def update(self, streaks: Mapping[str, str]) -> None:
        """Publish changes; ``streaks`` are sentences about task sets that give nothing to train on, by set."""
        worded = {f"groups_rejected:{name}": self._word(sentence) for name, sentence in streaks.items()}
        self.sentences = {**worded, **self._start_alerts, **self._problems}
        try:
            await self._publisher.update({cause: Reason("learner", each) for cause, each in self.sentences.items()})
        except (BusError, NatsError) as error:
            log.warning("alerts are not published yet: %s", error)

    def _word(self, sentence: str) -> str:
        return f"learner of {self._settings.model}: {sentence}"
