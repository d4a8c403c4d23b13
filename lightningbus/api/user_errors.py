"""Errors that a user can put right, as one kind of exception."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from lightningbus.bus.errors import BusError
from lightningbus.common.listeners import AddressInUseError
from lightningbus.run.errors import UserError
from lightningbus.tasks.errors import TaskFileError


@contextmanager
def as_user_error() -> Iterator[None]:
    """Raise `UserError` with the same sentence for errors of the bus and of task files, inside the block."""
    try:
        yield
    except (BusError, TaskFileError, AddressInUseError) as error:
        raise UserError(str(error)) from error


def require_package(name: str, extra: str) -> None:
    """Raise `UserError` that says what to install, unless a package is there."""
    if find_spec(name) is None:
        raise UserError(f"{name} is not installed: pip install 'lightningbus[{extra}]'")
