"""``python -m lightningbus``."""

from lightningbus.cli.app import main

main()
