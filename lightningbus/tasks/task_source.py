"""Source of tasks: a file or a data set, and the columns that make a task. Pure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lightningbus.common.parsed_models import parse_model

HUB_PREFIX = "hf:"
"""Before the name of a data set on the Hugging Face Hub."""
SET_LABEL, SET_SEPARATOR = "task_set", "/"
"""Label of a task with the name of its set, and the character between that name and the id."""


class TaskSource(BaseModel):
    """A file of rows, or a data set, and the columns that make a task of each row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(
        min_length=1,
        description="JSONL, Parquet or CSV file, directory of a data set, or `hf:NAME` of one on the Hugging Face Hub",
    )
    columns: dict[str, str] = Field(
        default={},
        description="fields of the input by the column they are read from, as {question: prompt}; default: "
        "every column",
    )
    id: str | None = Field(
        default=None, description="column of the task's id; default: `id` if there is one, else row numbers"
    )
    labels: dict[str, str] = Field(
        default={}, description="labels of a task by the column they are read from, as {level: difficulty}"
    )
    benchmark: Literal["gsm8k", "math", "humaneval", "mbpp", "bfcl", "ifeval"] | None = Field(
        default=None,
        description="benchmark whose files the rows are from, in place of `columns`, `id` and `labels`; answers are "
        "scored by `lightningbus.graders.benchmark_scores:score`",
    )
    split: str = Field(default="train", description="split of the data set")
    config: str | None = Field(default=None, description="configuration of the data set, where it has several")

    @model_validator(mode="after")
    def _benchmark(self) -> Self:
        if self.benchmark is not None and self.has_map:
            raise ValueError("benchmark: it says what the columns are; leave out columns, id and labels")
        return self

    @property
    def has_map(self) -> bool:
        """Whether columns have names of their own, rather than those of a task."""
        return bool(self.columns or self.id or self.labels)

    def __str__(self) -> str:
        return self.path


class NamedTaskSource(TaskSource):
    """One of several sets of tasks."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="name of the set: the label `task_set` of its tasks, and the beginning of their ids",
    )


def as_task_source(value: Path | str | TaskSource) -> TaskSource:
    """Convert a path to the source that reads it by its suffix."""
    return value if isinstance(value, TaskSource) else TaskSource(path=str(value))


def parse_columns(words: Sequence[str]) -> dict[str, str]:
    """Parse ``question=prompt`` or ``question=prompt,answer=target`` to a map; raise ValueError naming the word."""
    columns: dict[str, str] = {}
    for word in (part for words_of_option in words for part in words_of_option.split(",")):
        field, separator, column = word.partition("=")
        if not (field and separator and column):
            raise ValueError(f"{word!r} is not of the form field=column")
        columns[field] = column
    return columns


def parse_task_source(value: Any, kind: type[TaskSource] = TaskSource) -> Any:
    """Convert a mapping to the source it names, and return anything else; raise ValueError naming the wrong field."""
    return parse_model(value, kind)


TaskSourceSetting = Annotated[Path | TaskSource, BeforeValidator(lambda value: parse_task_source(value))]
"""The type of a setting: a path, or a mapping with the fields of `TaskSource`."""
