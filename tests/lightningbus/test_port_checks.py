"""Ports that a run cannot have are said by their settings, before anything starts."""

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.run.errors import UserError
from lightningbus.run.preflight.port_checks import check_ports, list_listeners
from lightningbus.run.settings.run_file import RunSettings

NODE = {"model_path": "model"}
LEARNER = {"model_path": "model"}
PLACES: dict[str, Callable[[int], dict[str, Any]]] = {
    "bus.port": lambda port: {"bus": {"port": port}},
    "store.http_port": lambda port: {"store": {"http_port": port}},
    "inference.1.port": lambda port: {"inference": [NODE, NODE | {"port": port}]},
    "learner.weights.broadcast.port": lambda port: {
        "learner": LEARNER | {"weights": {"broadcast": {"backend": "gloo", "port": port}}}
    },
    "learners.0.weights.broadcast.port": lambda port: {
        "learners": [LEARNER | {"weights": {"broadcast": {"backend": "gloo", "port": port}}}]
    },
    "store.health_address": lambda port: {"store": {"http_port": 0, "health_address": port}},
    "inference.0.health_address": lambda port: {"inference": [NODE | {"health_address": f"127.0.0.1:{port}"}]},
    "runners.0.health_address": lambda port: {"runners": [{"entrypoint": "a:b", "health_address": port}]},
    "learner.health_address": lambda port: {"learner": LEARNER | {"health_address": port}},
    "auditor.health_address": lambda port: {"auditor": {"model_path": "model", "health_address": port}},
}


def settings_of(**sections: Any) -> RunSettings:
    return RunSettings.model_validate({"bus": {"port": 0}, **sections})


@pytest.mark.parametrize("setting", PLACES)
def test_every_port_that_is_taken_is_said_by_its_setting(setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as refused:
            check_ports(settings_of(**PLACES[setting](port)))
    reason = os.strerror(errno.EADDRINUSE)
    assert str(refused.value) == (
        f"{setting}: cannot listen on 127.0.0.1:{port}: {reason}; choose another, or 0 for a free one"
    )
    check_ports(settings_of(**PLACES[setting](0)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen on every port")
def test_a_port_that_this_user_may_not_have_is_said() -> None:
    with pytest.raises(UserError, match=r"bus\.port: cannot listen on 127\.0\.0\.1:80: "):
        check_ports(settings_of(bus={"port": 80}))


def test_an_address_that_this_machine_lacks_is_said() -> None:
    with pytest.raises(UserError, match=r"bus\.port: cannot listen on 192\.0\.2\.1:"):
        check_ports(settings_of(bus={"host": "192.0.2.1", "port": 4999}))


@given(
    st.lists(st.sampled_from([name for name in PLACES if not name.startswith("learners.")]), min_size=2, unique=True)
)
def test_a_port_that_is_given_twice_is_said(settings: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sections: dict[str, Any] = {}
    for setting in settings:
        for name, value in PLACES[setting](port).items():
            before = sections.get(name)
            sections[name] = {**before, **value} if isinstance(before, dict) else before or value
    listeners = [each for each in list_listeners(settings_of(**sections)) if each.port == port]
    if len(listeners) > 1:
        with pytest.raises(UserError, match=f"has port {port} too: choose another"):
            check_ports(settings_of(**sections))


def test_servers_that_are_elsewhere_listen_nowhere_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_ports(
            settings_of(
                bus={"url": "nats://elsewhere:4222", "port": port},
                store={"url": "http://elsewhere:8123", "http_port": port},
                learner=LEARNER | {"weights": {"broadcast": {"port": port}}},
            )
        )
