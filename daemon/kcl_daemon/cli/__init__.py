"""The command line: thin commands over the packages that do the work."""

from kcl_daemon.cli.root import main

__all__ = ["main"]
