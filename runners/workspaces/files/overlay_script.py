"""Mounts a writable view over directories, and becomes a program that sees it. Python 3.8 or newer, standard library.

``python -I overlay_script.py FOLDER LOWER UPPER KERNEL TARGET program ...``: paths are relative to FOLDER, LOWER may be
several with ``:`` between. What the program writes goes to UPPER. The mount is in a namespace of the program's own: it
is gone with its processes, however they end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
AS_ROOT, AS_USER = "index=off,redirect_dir=off,metacopy=off", "index=off,userxattr"
"""A renamed directory is copied, so that what was changed can be read from UPPER alone; ``userxattr`` implies that."""


def main() -> None:
    folder, lower, upper, kernel, target, *command = sys.argv[1:]
    os.chdir(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={kernel},"
    if libc.unshare(CLONE_NEWNS) == 0:
        options += AS_ROOT
    else:  # not as root: in a namespace of users too, as the same user
        user, group = os.getuid(), os.getgid()
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUSER), "a namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")
        options += AS_USER
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "a private namespace")
    check(libc.mount(b"overlay", os.fsencode(target), b"overlay", 0, options.encode()), "an overlay")
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(target)
    os.execvp(command[0], command)


def check(status: int, what: str) -> None:
    if status != 0:
        sys.exit(f"{what} cannot be made: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
