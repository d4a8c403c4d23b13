"""Hosts on one machine: a network namespace each, with a cable to a switch that can be cut, or slow.

Not every kernel can filter or delay, so the switch is ours: a thread that carries frames between TAP devices.
"""

import asyncio
import ctypes
import fcntl
import heapq
import itertools
import os
import selectors
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lightningbus.common.processes.subprocesses import spawn, terminate

TUN, TUNSETIFF, IFF_TAP, IFF_NO_PI = "/dev/net/tun", 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 9000
"""As in a data centre; a frame a turn of the switch."""
BROADCAST = 1
"""The bit of an address' first byte that is set where it is meant for many."""
MOST_HELD = 20_000
STOP_SECONDS = 30.0
PREFIX = "lb"
NAMESPACES = Path("/run/netns")
_numbers = itertools.count()


@cache
def missing() -> str:
    """What this machine lacks for hosts of our own; empty if nothing."""
    name = f"{PREFIX}{os.getpid()}-try"
    try:
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"network namespaces, of which root may make some: {done.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", name], check=True)
        os.close(_tap(name[:15]))
    except OSError as error:
        return f"network namespaces: {error.filename or TUN}: {error.strerror}"
    return ""


@dataclass
class Cable:
    """From a host to a switch; change `cut` and `delay` at any time. ``delay`` is in seconds, one way."""

    tap: int
    cut: bool = False
    delay: float = 0.0


@dataclass(eq=False)
class Host:
    """A namespace with addresses of its own, and the processes that run there."""

    name: str
    namespace: str
    address: str
    cables: list[Cable] = field(default_factory=list)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is on the host while the block runs: sockets it makes are the host's."""
        with Path("/proc/thread-self/ns/net").open() as home:
            try:
                with (NAMESPACES / self.namespace).open() as there:
                    _enter(there.fileno())
                yield
            finally:
                _enter(home.fileno())

    @contextmanager
    def cut(self, *cables: Cable) -> Iterator[None]:
        """Nothing comes through these of its cables, or any, while the block runs."""
        for cable in cables or self.cables:
            cable.cut = True
        try:
            yield
        finally:
            for cable in cables or self.cables:
                cable.cut = False

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Whatever it says or hears is so much later while the block runs."""
        for cable in self.cables:
            cable.delay = seconds
        try:
            yield
        finally:
            for cable in self.cables:
                cable.delay = 0.0

    async def start(
        self, name: str, *command: object, at: Path, environment: Mapping[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        """Start a program on the host, in the directory ``at``, where its log is kept as well."""
        with (at / f"{name}.log").open("ab") as log:
            process = await spawn(
                "ip", "netns", "exec", self.namespace, *map(str, command),
                cwd=at, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.processes[name] = process
        return process

    async def stop(self) -> None:
        """End its processes, gently if they let us, and whatever they have left."""
        await asyncio.gather(*(terminate(process, STOP_SECONDS) for process in self.processes.values()))
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def listening(self) -> list[tuple[str, int, str]]:
        """(address, port, who) of everything that waits for TCP connections there."""
        command = ["ip", "netns", "exec", self.namespace, "ss", "-Hltnp"]
        stdout = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        actual = []
        for line in stdout.splitlines():
            _, _, _, local, _, *who = line.split(maxsplit=5)
            address, _, port = local.rpartition(":")
            actual.append((address.strip("[]").partition("%")[0], int(port), who[0].strip() if who else ""))
        return actual


class Network:
    """A switch with what is plugged into it; a context manager, with which everything it made is gone."""

    def __init__(self, subnet: str = "10.77.0") -> None:
        self.hosts: dict[str, Host] = {}
        self._subnet = subnet
        self._hosts_made: list[Host] = []
        self._addresses = itertools.count(1)
        self._switch = _Switch()

    async def __aenter__(self) -> "Network":
        _sweep()
        self._switch.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*(host.stop() for host in self._hosts_made))
        finally:
            self._switch.stop()  # the devices go with it
            for host in self._hosts_made:
                _ip("netns", "del", host.namespace)

    def host(self, name: str) -> Host:
        """A new host on this network."""
        namespace = f"{PREFIX}{os.getpid()}-{next(_numbers)}-{name}"
        _ip("netns", "add", namespace)
        host = Host(name, namespace, "")
        self._hosts_made.append(host)
        _ip("-n", namespace, "link", "set", "lo", "up")
        host.address = self.plug(host)
        return host

    def plug(self, host: Host) -> str:
        """A cable from a host, maybe of another network, to this one; returns its address here."""
        device = f"{PREFIX}{os.getpid()}x{next(_numbers)}"[:15]
        interface = f"eth{len(host.cables)}"
        address = f"{self._subnet}.{next(self._addresses)}"
        cable = Cable(_tap(device))
        _ip("link", "set", device, "netns", host.namespace, "name", interface)
        _ip("-n", host.namespace, "address", "add", f"{address}/24", "dev", interface)
        _ip("-n", host.namespace, "link", "set", interface, "mtu", str(MTU), "up")
        host.cables.append(cable)
        self.hosts[host.name] = host
        self._switch.add(cable)
        return address


class _Switch(threading.Thread):
    """Carries frames to whom they are for, once it has seen where that is, else to everybody."""

    def __init__(self) -> None:
        super().__init__(name="switch", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._cables: list[Cable] = []
        self._where: dict[bytes, Cable] = {}
        self._delayed: list[tuple[float, int, Cable, bytes]] = []
        self._order = itertools.count()
        self._over = False

    def add(self, cable: Cable) -> None:
        """Begin to carry what comes through a cable."""
        self._cables = [*self._cables, cable]
        self._selector.register(cable.tap, selectors.EVENT_READ, cable)
        os.write(self._woken, b"+")

    def stop(self) -> None:
        """End, and take all cables away."""
        self._over = True
        os.write(self._woken, b".")
        self.join()
        for handle in (self._wake, self._woken, *(cable.tap for cable in self._cables)):
            os.close(handle)
        self._selector.close()

    def run(self) -> None:
        """The switch's thread."""
        while not self._over:
            wait = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else None
            for key, _ in self._selector.select(wait):
                if key.data is None:
                    os.read(self._wake, 16)
                else:
                    self._carry(key.data)
            while self._delayed and self._delayed[0][0] <= time.monotonic():
                *_, cable, frame = heapq.heappop(self._delayed)
                _put(cable, frame)

    def _carry(self, cable: Cable) -> None:
        with suppress(BlockingIOError):
            frame = os.read(cable.tap, 65536)
            if cable.cut:
                return
            self._where[frame[6:12]] = cable
            known = None if frame[0] & BROADCAST else self._where.get(frame[:6])
            for other in [known] if known else [item for item in self._cables if item is not cable]:
                delay = cable.delay + other.delay
                if not delay:
                    _put(other, frame)
                elif len(self._delayed) < MOST_HELD:
                    heapq.heappush(self._delayed, (time.monotonic() + delay, next(self._order), other, frame))


def _put(cable: Cable, frame: bytes) -> None:
    if not cable.cut:
        with suppress(OSError):  # its interface is down, or its queue full: what a cable does then
            os.write(cable.tap, frame)


def _tap(device: str) -> int:
    handle = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    except OSError:
        os.close(handle)
        raise
    return handle


def _enter(handle: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _sweep() -> None:
    """Take away the namespaces of test runs that were killed."""
    for path in NAMESPACES.glob(f"{PREFIX}[0-9]*-*") if NAMESPACES.exists() else ():
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            _ip("netns", "del", path.name)
