"""What a step is given: sizes, a directory, and where its figures go."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import make_model
from benchmarks.gpu.sizes import Scale, Size
from benchmarks.results import Result
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.schemas.fleet import Heartbeat

START_SECONDS = 600.0
"""How long an engine may take to start: it compiles for the GPU the first time."""


@dataclass(frozen=True, slots=True)
class Context:
    """One step's."""

    scale: Scale
    work: Path
    """Directory of all steps; models in it are shared."""
    name: str
    report: Callable[[Result], None]
    """Keeps a figure at once, so that it stays when the step ends by an error or by its time limit."""

    def model(self, size: Size) -> Path:
        """The directory of the model of that size."""
        return make_model(self.scale.shapes[size], self.scale.dtype, self.work / "models")

    def title(self, size: Size) -> str:
        """The model of that size, in words."""
        return self.scale.shapes[size].name

    def read_value(self, step: str, place: int) -> float | None:
        """A figure that an earlier step of this directory reported, by its place there; None without it."""
        path = self.work / "steps" / f"{step}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return rows[place].get("value") if place < len(rows) else None

    @asynccontextmanager
    async def node(self, model: Path, engine: Mapping[str, Any]) -> AsyncIterator[tuple[LocalStack, Heartbeat]]:
        """A bus and a node that serves a model as it is, until the block ends; raises `UserError` if it fails."""
        with RunDirectory(self.work / self.name).lock(fresh=True) as directory:
            async with start_stack(directory, BusSettings(port=0), f"gpu: {self.name}") as at:
                fields = {"model_path": model, "id": "node", "frozen": True, "work_dir": directory.path / "node"}
                settings = InferenceSettings.model_validate({**engine, **fields})
                await at.supervisor.start(ChildSpec("node", "inference", settings))
                node = await at.wait_for_member(
                    lambda beat: beat.role == "inference" and beat.state == "ready", "node", START_SECONDS
                )
                yield at, node
