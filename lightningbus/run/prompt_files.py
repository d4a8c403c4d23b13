"""The texts of prompts as files of a run's directory: they are there when the run, and its bus, are gone."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from lightningbus.run.role_process import UserError
from lightningbus.run.whole_file import write_whole
from schemas.prompts import PromptVersion

PROMPTS = "prompts"
"""The directory of the texts, in that of the run."""


class PromptFile(BaseModel):
    """Where the text of a prompt lies."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(description="the version in use")
    file: Path = Field(description="its text, within the directory of the run")


def write_prompts(directory: Path, prompts: Mapping[str, PromptVersion]) -> dict[str, PromptFile]:
    """Write the text of each prompt to ``prompts/NAME.txt`` of a run's directory.

    Raises `UserError` where they cannot be written.
    """
    try:
        (directory / PROMPTS).mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory / PROMPTS} cannot be written: {error.strerror}") from error
    files = {}
    for name, prompt in sorted(prompts.items()):
        file = Path(PROMPTS) / f"{name}.txt"
        write_whole(directory / file, prompt.text)
        files[name] = PromptFile(version=prompt.version, file=file)
    return files
