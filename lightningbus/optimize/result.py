"""Result of an optimisation: figures for its file, and a summary in words."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.optimize.round import RoundResult
from lightningbus.run.results.prompt_files import PromptFile
from lightningbus.run.results.results import RESULTS
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.whole_file import write_whole


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """Result of a round, with the directory and files of the texts in use."""

    round: RoundResult
    directory: Path
    prompts: Mapping[str, PromptFile]
    """File and version of each prompt in use after the round, by the prompt's name."""

    def to_figures(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        comparison = self.round.comparison
        return {
            "released": self.round.is_released,
            "versions": dict(self.round.versions),
            "texts": dict(self.round.texts),
            "rollouts": self.round.num_rollouts,
            "candidates": self.round.num_candidates,
            "heldout": comparison.metrics if comparison is not None else {},
            "prompts": {name: file.model_dump(mode="json") for name, file in self.prompts.items()},
        }

    def write(self) -> None:
        """Write ``results.json`` to the run's directory; raises `UserError` where it cannot be."""
        write_whole(self.directory / RESULTS, json.dumps(self.to_figures(), indent=2, ensure_ascii=False) + "\n")

    def describe(self) -> Iterator[str]:
        """Yield the summary, line by line."""
        comparison = self.round.comparison
        yield f"{self.round.num_candidates} candidates, {self.round.num_rollouts} rollouts"
        if comparison is None:
            yield "no proposal was better: nothing is released"
        else:
            verb = "released" if self.round.is_released else "not released"
            for name, version in self.round.versions.items():
                yield f"{verb}: version {version} of prompt {name}; {comparison.reason}"
        for name, prompt in self.prompts.items():
            yield f"text of prompt {name}, version {prompt.version}: {self.directory / prompt.file}"
        if RunDirectory(self.directory).has_own_bus():
            yield f"all versions: lightningbus prompts list --run {shlex.quote(str(self.directory))}"
