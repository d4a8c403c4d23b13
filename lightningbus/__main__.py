"""``python -m lightningbus``."""

from lightningbus.cli import main

main()
