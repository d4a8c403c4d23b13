"""What a process listens on."""

from pathlib import Path

import psutil


def ports_and_sockets(process: psutil.Process) -> tuple[set[str], set[Path]]:
    """Addresses with a port, and paths of Unix sockets, of a process and all below it."""
    kin = [process, *process.children(recursive=True)]
    waiting = [
        connection
        for kind in kin
        for connection in kind.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    bound = [connection for kind in kin for connection in kind.net_connections("unix") if connection.laddr]
    return {entry.laddr.ip for entry in waiting}, {Path(entry.laddr) for entry in bound}


def child(word: str) -> psutil.Process:
    """The one of this process whose command line has a word."""
    (actual,) = [kin for kin in psutil.Process().children() if word in (kin.as_dict(["cmdline"])["cmdline"] or [])]
    return actual
