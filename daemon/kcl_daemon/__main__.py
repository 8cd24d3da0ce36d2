"""`kcl-daemon` and `python -m kcl_daemon`: handle Ctrl-C first, then import the command line."""

from kcl_daemon import interrupt


def main() -> None:
    interrupt.begin()
    from kcl_daemon.cli import main as command_line  # Ctrl-C while this is imported must be quiet, too

    command_line()


if __name__ == "__main__":
    main()
