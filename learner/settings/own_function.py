"""A user's own function: every error in it becomes one sentence, which names the setting and the line."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lightningbus.learner.settings.import_path import resolve_function
from lightningbus.learner.settings.user_code import describe_error

MAX_VALUES = 3
"""Number of wrong values that an error quotes."""


class OwnFunctionError(ValueError):
    """A user's own function raised or returned something unusable; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """The function at ``module:function`` that a setting names."""

    setting: str
    path: str
    function: Callable[..., Any]

    @classmethod
    def load(cls, setting: str, path: str) -> "OwnFunction":
        """Import it; raises ValueError with a sentence that names the setting."""
        return cls(setting, path, resolve_function(path, setting))

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; raise `OwnFunctionError`."""
        with self.explain_errors():
            return self.function(*arguments)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn every error of the function into an `OwnFunctionError`, with the error as its cause."""
        try:
            yield
        except OwnFunctionError:  # raised by another function that this one called
            raise
        except Exception as error:
            raise self.refuse_result(f"raised {describe_error(error, self.function)}") from error

    def refuse_result(self, problem: str) -> OwnFunctionError:
        """Build the error for an invalid result."""
        return OwnFunctionError(f"{self.setting}: {self.path} {problem}")

    def read_list(self, values: Any, length: int, things: str) -> Sequence[Any]:
        """Read a result that must be a list of one item for each of ``things``."""
        if not _is_list(values):
            raise self.refuse_result(f"returned {describe(values)} for {length} {things}: it must be a list")
        if len(values) != length:
            raise self.refuse_result(f"returned {len(values)} values for {length} {things}")
        return list(values)

    def read_numbers(self, values: Any, length: int, things: str) -> list[float]:
        """Read a result that must be a list of one finite number for each of ``things``."""
        items = self.read_list(values, length, things)
        numbers = [_read_number(item) for item in items]
        wrong = [describe(item) for item, number in zip(items, numbers, strict=True) if number is None]
        if wrong:
            raise self.refuse_result(f"returned what is not a number for {length} {things}: {_list_few(wrong)}")
        known = [number for number in numbers if number is not None]
        wrong = [str(number) for number in known if not math.isfinite(number)]
        if wrong:
            raise self.refuse_result(
                f"returned values that are not finite, {len(wrong)} of {length} for {things}: {_list_few(wrong)}"
            )
        return known


def describe(value: Any) -> str:
    """Describe a wrong value in a few words."""
    return "None" if value is None else f"{_shorten(repr(value))} ({type(value).__name__})"


def _is_list(values: Any) -> bool:
    has_items = hasattr(values, "__len__") and hasattr(values, "__iter__")
    return has_items and getattr(values, "ndim", 1) > 0 and not isinstance(values, str | bytes | Mapping | Set)


def _read_number(value: Any) -> float | None:
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except Exception:  # any type's own conversion
        return None


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:40]}…"


def _list_few(words: Sequence[str]) -> str:
    return ", ".join(words[:MAX_VALUES]) + (", …" if len(words) > MAX_VALUES else "")
