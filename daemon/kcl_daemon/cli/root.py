"""`kcl-daemon`: its options, exit codes and subcommands.

Imports nothing heavy: what runs the daemon is loaded when a daemon is to be run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import click

from kcl_daemon import __version__, interrupt
from kcl_daemon.cli.commands import CommandGroup, LaterCommand
from kcl_daemon.cli.examples import add_examples
from kcl_daemon.cli.launcher import PASSED_OVER, as_daemon

_EPILOG: Final = """\b
Exit codes:
  0      stopped gracefully, every child has finished
  1      could not start, or stopped because of an error
  2      wrong command line, properties file or environment; a restart does not help
  128+n  ended at once by a second signal (number n), or by the first one before the start: 130 is Ctrl-C

\b
SIGTERM, SIGINT or SIGHUP stop it gracefully; a second one stops it at once.
The log goes to stderr: text on a terminal, otherwise one JSON object per line.
"""


@click.command("run", short_help="Run the daemon (default).")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "-p",
    "--properties",
    "--properties-file",
    "--props",
    "--prop",
    "properties_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Properties file, same format as the Java daemon; overrides [FILE].",
)
@click.option(
    "-l",
    "--log-configuration",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Accepted and ignored, as the Java daemon's logback file has no effect here; use --log-level.",
)
@click.option(
    "--log-level",
    metavar="LEVEL[,COMPONENT=LEVEL...]",
    help="Lowest level to log: debug, info (default), warning, error or off; components such as "
    "kcl_daemon.retrieval can have their own level.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json", "auto"], case_sensitive=False),
    default="auto",
    show_default=True,
    help="Text, JSON lines, or (auto) text on a terminal and JSON otherwise.",
)
@click.option(PASSED_OVER, "passed_over", multiple=True, hidden=True)
@click.option("-j", "--java", "java", multiple=True, hidden=True)
@click.option(
    "-c",
    "--classpath",
    "--path",
    "--jar-path",
    "--jar-folder",
    "class_path",
    multiple=True,
    hidden=True,
)
@click.option("-e", "--execute", is_flag=True, hidden=True)
def run(
    *,
    file: Path | None,
    properties_file: Path | None,
    log_configuration: Path | None,
    log_level: str | None,
    log_format: Literal["console", "json", "auto"],
    passed_over: tuple[str, ...],
    java: tuple[str, ...],
    class_path: tuple[str, ...],
    execute: bool,  # noqa: ARG001 - what a launcher does by this is what is done anyway
) -> None:
    """Run the daemon with a properties file until a signal stops it."""
    chosen = properties_file or file
    if chosen is None:
        raise click.UsageError("no properties file given: kcl-daemon --properties FILE")
    # Here and not above: --help must not wait for the AWS SDK.
    from kcl_daemon.cli.run import Request, run_daemon  # noqa: PLC0415
    from kcl_daemon.cli.run_log import LogRequest  # noqa: PLC0415
    from kcl_daemon.observe.levels import parse_levels  # noqa: PLC0415

    try:
        levels = None if log_level is None else parse_levels(log_level)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--log-level") from None
    run_daemon(
        Request(
            file=chosen,
            ignored_file=file if properties_file is not None else None,
            log=LogRequest(log_configuration, levels, log_format),
            passed_over=(*passed_over, *java, *class_path),
        )
    )


class Root(CommandGroup):
    """The program itself: its commands, or a command line that was meant for Java; and what Ctrl-C does to it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn Java's words into ours first."""
        return super().parse_args(ctx, as_daemon(args))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command, with the examples of its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            add_examples(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command; only then does Ctrl-C raise, and not for `run`, which handles signals itself."""
        found = super().resolve_command(ctx, args)
        if found[1] is not run:
            interrupt.end()
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; Ctrl-C is exit code 130 wherever it comes, at a prompt as well."""
        try:
            result: object = super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(interrupt.EXIT_INTERRUPTED)
        except click.Abort as aborted:
            if isinstance(aborted.__context__, KeyboardInterrupt):
                click.echo(err=True)  # the cursor stands behind the prompt
                ctx.exit(interrupt.EXIT_INTERRUPTED)
            raise
        else:
            return result
        finally:
            interrupt.begin()


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"kcl-daemon {__version__}")
        context.exit()


main: Final = Root(
    name="kcl-daemon",
    help="Process an Amazon Kinesis data stream with a program in any language.\n\nRuns the program of "
    "executableName once per shard and talks to it with the MultiLangDaemon protocol.",
    epilog=_EPILOG,
    default=run,
    later={
        "demo": LaterCommand(
            "kcl_local.demo.command:demo",
            "Try everything on this machine, without an AWS account.",
            extra="local",
            modules=("aiohttp", "flask", "flask_cors", "moto", "rich"),
        ),
        "check": LaterCommand(
            "kcl_daemon.cli.check:check",
            "Show what a properties file means, and its errors.",
        ),
        "completion": LaterCommand(
            "kcl_daemon.cli.completion:completion",
            "Print the completion script of a shell.",
        ),
        "helper": LaterCommand(
            "kcl_daemon.cli.helper:helper",
            "Print the command that starts the daemon, like the helpers of the client libraries.",
        ),
        "iam-policy": LaterCommand(
            "kcl_daemon.cli.iam_policy:iam_policy",
            "Print the IAM permissions that the daemon needs.",
        ),
        "leases": LaterCommand(
            "kcl_daemon.cli.leases:leases",
            "Show which worker reads which shard and why; move, reset and delete leases.",
        ),
        "local": LaterCommand(
            "kcl_local.command:local",
            "Run local Kinesis, DynamoDB, STS and CloudWatch endpoints.",
            extra="local",
            modules=("aiohttp", "flask", "flask_cors", "moto"),
        ),
        "migrate": LaterCommand(
            "kcl_daemon.cli.migrate:migrate",
            "Show and control the migration from KCL 2.x.",
        ),
        "packaging": LaterCommand(
            "kcl_daemon.cli.packaging:packaging",
            "Print or write files for systemd, Kubernetes and others, and the documentation.",
        ),
        "replay": LaterCommand(
            "kcl_daemon.cli.replay:replay",
            "Replay a recorded session with a processor.",
        ),
        "run-child": LaterCommand(
            "kcl_daemon.cli.run_child:run_child",
            "Test a processor with a file of records, without a stream.",
        ),
        "status": LaterCommand(
            "kcl_daemon.cli.status:status",
            "Show the state of a running daemon; the exit code says whether it is ready.",
        ),
        "top": LaterCommand(
            "kcl_daemon.cli.status:top",
            "Show the same as a live view.",
            extra="terminal",
            modules=("rich",),
        ),
    },
    params=[
        click.Option(
            ["-V", "--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            help="Show the version and exit.",
            callback=_show_version,
        )
    ],
)

add_examples(main, "")
