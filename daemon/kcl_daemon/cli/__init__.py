"""The command line."""

from kcl_daemon.cli.root import main

__all__ = ["main"]
