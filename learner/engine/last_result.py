"""Cache of a function's last result: the layers of a model ask the same of the same positions.

On a GPU each such question waits for all that was queued before it.
"""

import weakref
from collections.abc import Callable
from typing import Any


class LastResult:
    """The result for one tensor, which is held weakly, and for the other arguments."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        self._compute = compute
        self._key: tuple[Any, ...] | None = None
        self._result: Any = None

    def __call__(self, tensor: Any, *arguments: Any) -> Any:
        """Return ``compute(tensor, *arguments)``, computed anew for another or a changed tensor or other arguments."""
        if self._key is None or self._key[0]() is not tensor or self._key[1:] != (tensor._version, arguments):
            self._result = self._compute(tensor, *arguments)
            self._key = weakref.ref(tensor), tensor._version, arguments
        return self._result
