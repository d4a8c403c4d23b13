"""Weight versions onto the bus: the bytes as a blob, then the manifest, by compare-and-set."""

import time
from collections import deque
from pathlib import Path

from bus import Bus, Fenced
from learner.settings import LearnerSettings
from schemas import identity, subjects
from schemas.events import WeightVersion


class CannotLearn(Exception):
    """The learner cannot start or go on; the message says why and what to do."""


class WeightPublisher:
    """The one writer of a model's versions; a second one is fenced off by the stream."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._bus, self._settings = bus, settings
        self._subject = subjects.weights(settings.model)
        self._last_sequence = 0
        self._kept: deque[str] = deque()
        self.last: WeightVersion | None = None

    async def look(self) -> WeightVersion | None:
        """The newest version on the bus; what is published from now on replaces exactly that one."""
        found = await self._bus.last(subjects.WEIGHTS, self._subject, WeightVersion)
        self.last, self._last_sequence = found or (None, 0)
        if self.last is not None:
            self._kept.extend(blob.name for blob in self.last.blobs)
        return self.last

    async def publish(self, path: Path, *, version: int, epoch: int, step: int) -> None:
        """A safetensors file as a version; raises `CannotLearn` when another learner has published meanwhile."""
        model = self._settings.model
        blob = await self._bus.blobs.put(subjects.WEIGHT_BUCKET, blob_name(model, version, epoch), path)
        manifest = WeightVersion(
            run=self._settings.run,
            model=model,
            version=version,
            parent=self.last.version if self.last is not None and self.last.version < version else None,
            blobs=(blob,),
            epoch=epoch,
            step=step,
            created_ns=time.time_ns(),
        )
        try:
            self._last_sequence = await self._bus.publish(
                self._subject,
                manifest,
                msg_id=identity.weight_msg_id(model, epoch, version),
                expect_last=self._last_sequence,
            )
        except Fenced as error:
            raise CannotLearn(
                f"another learner has published model {model!r} since: this one, of epoch {epoch}, stops"
            ) from error
        self.last = manifest
        if blob.name not in self._kept:
            self._kept.append(blob.name)
        while len(self._kept) > self._settings.keep_versions:
            await self._bus.blobs.delete(subjects.WEIGHT_BUCKET, self._kept.popleft())


def blob_name(model: str, version: int, epoch: int) -> str:
    """Name of a version's blob; the epoch keeps two learners from writing the same one."""
    return f"{model}-{version:06d}-{epoch}"
