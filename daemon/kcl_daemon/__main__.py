"""The program `kcl-daemon`, and `python -m kcl_daemon`: Ctrl-C is heeded first, then the command line is imported."""

from kcl_daemon import interrupt


def main() -> None:
    """Run the command line; leaves the process."""
    interrupt.begin()
    from kcl_daemon.cli import main as command_line  # noqa: PLC0415 - Ctrl-C while this is imported must be quiet, too

    command_line()


if __name__ == "__main__":
    main()
