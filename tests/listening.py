"""What a process listens on."""

from pathlib import Path

import psutil


def ports_and_sockets(process: psutil.Process) -> tuple[set[str], set[Path]]:
    """Addresses with a port, and paths of Unix sockets, of a process and all below it."""
    kin = [process, *process.children(recursive=True)]
    waiting = [one for kind in kin for one in kind.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    bound = [one for kind in kin for one in kind.net_connections("unix") if one.laddr]
    return {one.laddr.ip for one in waiting}, {Path(one.laddr) for one in bound}


def child(word: str) -> psutil.Process:
    """The one of this process whose command line has a word."""
    (found,) = [kin for kin in psutil.Process().children() if word in (kin.as_dict(["cmdline"])["cmdline"] or [])]
    return found
