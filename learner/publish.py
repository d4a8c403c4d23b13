"""Weight versions onto the bus: the bytes as a blob, then the manifest, by compare-and-set."""

import asyncio
import re
import time
from collections import deque
from pathlib import Path

from nats.aio.msg import Msg

from bus import Bus
from learner.settings import LearnerSettings
from schemas import identity, subjects
from schemas.events import Blob, WeightVersion


class CannotLearn(Exception):
    """The learner cannot start or go on; the message says why and what to do."""


class WeightPublisher:
    """The one writer of a model's versions; a second one is fenced off by the stream."""

    def __init__(self, bus: Bus, settings: LearnerSettings) -> None:
        self._bus, self._settings = bus, settings
        self._subject = subjects.weights(settings.model)
        self._last_sequence = 0
        self._kept: deque[str] = deque()
        self._base: tuple[Blob, ...] = ()
        self.last: WeightVersion | None = None

    async def look(self) -> WeightVersion | None:
        """The newest version on the bus; what is published from now on replaces exactly that one."""
        found = await self._bus.last(subjects.WEIGHTS, self._subject, WeightVersion)
        self.last, self._last_sequence = found or (None, 0)
        names = await self._bus.blobs.names(subjects.WEIGHT_BUCKET)
        self._kept = deque(name for name in names if re.fullmatch(rf"{self._settings.model}-\d+-\d+", name))
        return self.last

    async def superseded(self, epoch: int) -> None:
        """Wait until a learner of a newer epoch has published, then raise `CannotLearn`: this one is not to go on."""
        heard = asyncio.Event()

        async def on_message(message: Msg) -> None:
            heard.set()

        watching = await self._bus.nc.subscribe(self._subject, cb=on_message)
        try:
            while True:
                await heard.wait()
                heard.clear()
                # What is heard may have been refused, by compare-and-set: the stream says what was not.
                found = await self._bus.last(subjects.WEIGHTS, self._subject, WeightVersion)
                if found is not None and found[0].epoch > epoch:
                    raise another_learner(self._settings.model, epoch)
        finally:
            if self._bus.nc.is_connected:
                await watching.unsubscribe()

    async def share_base(self, path: Path) -> None:
        """What the adapters of every version from now on are added to; it stays on the bus."""
        self._base = (await self._bus.blobs.put(subjects.WEIGHT_BUCKET, f"{self._settings.model}-base", path),)

    async def publish(self, path: Path, *, version: int, epoch: int, step: int) -> None:
        """A safetensors file as a version; raises `Fenced` when another learner has published since the last look."""
        model = self._settings.model
        blob = await self._bus.blobs.put(subjects.WEIGHT_BUCKET, blob_name(model, version, epoch), path)
        manifest = WeightVersion(
            run=self._settings.run,
            model=model,
            version=version,
            parent=self.last.version if self.last is not None and self.last.version < version else None,
            kind="lora" if self._base else "full",
            blobs=(*self._base, blob),
            epoch=epoch,
            step=step,
            created_ns=time.time_ns(),
        )
        self._last_sequence = await self._bus.publish(
            self._subject,
            manifest,
            msg_id=identity.weight_msg_id(model, epoch, version),
            expect_last=self._last_sequence,
        )
        self.last = manifest
        if blob.name not in self._kept:
            self._kept.append(blob.name)
        while len(self._kept) > self._settings.keep_versions:
            await self._bus.blobs.delete(subjects.WEIGHT_BUCKET, self._kept.popleft())


def another_learner(model: str, epoch: int) -> CannotLearn:
    """Why a learner of an older epoch stops."""
    return CannotLearn(f"another learner has published model {model!r} since: this one, of epoch {epoch}, stops")


def blob_name(model: str, version: int, epoch: int) -> str:
    """Name of a version's blob; the epoch keeps two learners from writing the same one."""
    return f"{model}-{version:06d}-{epoch}"
