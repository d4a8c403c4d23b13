"""Texts of prompts as files of a run's directory, which stay when the run and its bus have ended."""

from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from lightningbus.bus.client import Bus
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.prompt_versions import read_prompts_in_use
from lightningbus.run.run_directory.whole_file import write_whole
from lightningbus.run.settings.optimize import PromptSettings
from lightningbus.schemas.prompts import PromptVersion

PROMPTS = "prompts"
"""Name of the directory of prompt texts, in the run's directory."""


class PromptFile(BaseModel):
    """File that holds the text of a prompt."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(description="prompt version in use")
    file: Path = Field(description="file with the prompt's text, within the directory of the run")


async def write_prompts_in_use(bus: Bus, agent: str, names: Collection[str], directory: Path) -> dict[str, PromptFile]:
    """Write the versions in use of an agent's prompts with `write_prompts`, because the bus may end with the run."""
    in_use = await read_prompts_in_use(bus, agent)
    return write_prompts(directory, {name: in_use[name] for name in names if name in in_use})


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


def read_prompt_text(name: str, settings: PromptSettings) -> str:
    """Return the text of version 0, from the setting or its file; raises `UserError` where the file has none."""
    if settings.text is not None:
        return settings.text
    assert settings.file is not None, "one of both is given"
    try:
        text = settings.file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"prompt {name!r}: {settings.file} cannot be read: {reason}") from error
    if not text.strip():
        raise UserError(f"prompt {name!r}: {settings.file} is empty")
    return text
