"""`python -m kcl_daemon`: the command line."""

from kcl_daemon.cli import main

main()
