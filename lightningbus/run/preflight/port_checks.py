"""Checks that this machine lets a run listen on the addresses in its settings."""

from collections.abc import Iterator
from dataclasses import dataclass

from lightningbus.common.listeners import AddressInUseError, open_listener
from lightningbus.common.role_settings import RoleSettings, parse_address
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings

ADVICE = "choose another, or 0 for a free one"
ANY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Listener:
    """An address that a process of the run listens on, with its setting."""

    setting: str
    host: str
    port: int


def check_ports(settings: RunSettings) -> None:
    """Raise `UserError` at the first port that is taken, not allowed to this user, or given twice."""
    listeners = [each for each in list_listeners(settings) if each.port]
    for number, listener in enumerate(listeners):
        for other in listeners[:number]:
            if other.port == listener.port and (
                other.host == listener.host or {*ANY_HOST} & {other.host, listener.host}
            ):
                raise UserError(f"{listener.setting}: {other.setting} has port {listener.port} too: {ADVICE}")
        try:
            open_listener(listener.host, listener.port, listener.setting, ADVICE).close()
        except AddressInUseError as error:
            raise UserError(str(error)) from error


def list_listeners(settings: RunSettings) -> Iterator[Listener]:
    """List every address in a run's settings that one of its processes listens on. Pure."""
    if settings.bus.url is None:
        yield Listener("bus.port", settings.bus.host, settings.bus.port)
    if settings.store is not None and settings.store.url is None:
        yield Listener("store.http_port", settings.store.host, settings.store.http_port)
    for number, node in enumerate(settings.inference):
        yield Listener(f"inference.{number}.port", node.host, node.port)
    for learner, setting in zip(settings.all_learners, _name_learners(settings), strict=True):
        broadcast = learner.weights.broadcast
        if broadcast.backend != "off":
            yield Listener(f"{setting}.weights.broadcast.port", broadcast.host, broadcast.port)
    roles: dict[str, RoleSettings | None] = {
        "store": settings.store,
        **{f"inference.{number}": node for number, node in enumerate(settings.inference)},
        **{f"runners.{number}": runner for number, runner in enumerate(settings.runners)},
        **dict(zip(_name_learners(settings), settings.all_learners, strict=True)),
        "auditor": settings.auditor,
        "grader": settings.grader,
    }
    for name, role in roles.items():
        if role is not None and role.health_address is not None:
            yield Listener(f"{name}.health_address", *parse_address(role.health_address))


def _name_learners(settings: RunSettings) -> list[str]:
    return [f"learners.{number}" for number in range(len(settings.learners))] or ["learner"] * len(
        settings.all_learners
    )
