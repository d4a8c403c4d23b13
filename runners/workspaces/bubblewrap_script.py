"""Starts bubblewrap with its options in a file without a name. Python 3.8 or newer, standard library.

``python -I bubblewrap_script.py OPTION ... -- program ...``. The options name directories of this machine, and anybody
inside the sandbox could read them in ``/proc/1/cmdline``.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    end = sys.argv.index("--")
    options = os.memfd_create("bubblewrap", 0)
    with open(options, "wb", closefd=False) as file:
        file.write(b"".join(os.fsencode(word) + b"\0" for word in sys.argv[1:end]))
    os.lseek(options, 0, os.SEEK_SET)
    try:
        os.execvp("bwrap", ["bwrap", "--args", str(options), *sys.argv[end:]])
    except FileNotFoundError:
        sys.exit("bubblewrap (bwrap) is not installed: install it, or set workspace.provider")


if __name__ == "__main__":
    main()
