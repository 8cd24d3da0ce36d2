"""A first word that is a file or an option belongs to `run`; so does a Java command line for MultiLangDaemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

import click
from click.shell_completion import CompletionItem

from kcl_daemon import __version__, interrupt
from kcl_daemon.cli.commands import GROUPS, LATER, ExtraMissing, add_examples, load_command
from kcl_daemon.cli.run_options import SPELLINGS, FunctionOptions, with_function_options
from kcl_daemon.wings import LaterCommand

MAIN_CLASSES: Final = (
    "software.amazon.kinesis.multilang.MultiLangDaemon",
    "com.amazonaws.services.kinesis.multilang.MultiLangDaemon",  # KCL 1.x
)
CLASS_PATH: Final = ("-c", "--classpath", "--path", "--jar-path", "--jar-folder", "class_path")
PASSED_OVER: Final = "--passed-over"
"""Words only for Java, which are logged."""
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


class NoSuchCommand(click.UsageError):
    @classmethod
    def of(cls, word: str, program: str, commands: Sequence[str], context: click.Context) -> NoSuchCommand:
        options = {"help": "--help", "version": "--version"}
        near = [options[word]] if word in options else get_close_matches(word, commands, n=3, cutoff=0.7)
        meant = " or ".join(f"`{program} {each}`" for each in near)
        hint = f"did you mean {meant}?" if meant else f"`{program} --help` lists the commands"
        return cls(f"no such command, and no such file: {word}; {hint}", context)


class CommandGroup(click.Group):
    def __init__(
        self,
        *,
        name: str,
        default: click.Command,
        later: Mapping[str, LaterCommand],
        groups: Mapping[str, Sequence[str]],
        help: str,  # noqa: A002 - click's name
        epilog: str,
        params: list[click.Parameter],
    ) -> None:
        shown = {"help_option_names": ["-h", "--help"]}
        super().__init__(
            name, help=help, epilog=epilog, params=params, context_settings=shown, no_args_is_help=True
        )
        assert default.name is not None, "the default command has a name"
        self._default = default
        self._default_name = default.name
        self._later = later
        self._groups = groups
        self.add_command(default)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted((self._default_name, *self._later))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        later = self._later.get(cmd_name)
        try:
            command = super().get_command(ctx, cmd_name) if later is None else load_command(cmd_name, later)
        except ExtraMissing:
            if ctx.resilient_parsing:  # no completions without the extra
                return None
            raise
        if command is not None:
            add_examples(command, cmd_name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = as_daemon(args)
        own_options = {spelling for each in self.get_params(ctx) for spelling in each.opts}
        if args and args[0] not in {*self.list_commands(ctx), *own_options}:
            if not ctx.resilient_parsing and not _may_be_file(args[0]) and ":" not in "".join(args[1:2]):
                raise NoSuchCommand.of(args[0], ctx.info_name or "", self.list_commands(ctx), ctx)
            args = [self._default_name, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Ctrl-C raises only after the import; the daemon handles signals itself."""
        found = super().resolve_command(ctx, args)
        if found[1] is not self._default:
            interrupt.end()
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C exits with 130, also at a prompt."""
        try:
            result: object = super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(interrupt.EXIT_INTERRUPTED)
        except click.Abort as aborted:
            if isinstance(aborted.__context__, KeyboardInterrupt):
                click.echo(err=True)  # the cursor is still behind the prompt
                ctx.exit(interrupt.EXIT_INTERRUPTED)
            raise
        else:
            return result
        finally:
            interrupt.begin()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        if incomplete.startswith("-"):
            return [*self._default.shell_complete(ctx, incomplete), *super().shell_complete(ctx, incomplete)]
        found = [CompletionItem(name, help=self._summary(name)) for name in names]
        return found or [CompletionItem(incomplete, type="file")]

    def _summary(self, name: str) -> str:
        later = self._later.get(name)
        return self._default.get_short_help_str() if later is None else later.summary

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        default = " ".join(self._default.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, default)
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] ...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left_out = {"--help", *SPELLINGS.values()}
        theirs = [each for each in self._default.get_params(ctx) if left_out.isdisjoint(each.opts)]
        options = [each for each in (*theirs, *self.get_params(ctx)) if isinstance(each, click.Option)]
        records = [each.get_help_record(ctx) for each in options]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        for title, names in self._groups.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(name)) for name in names])


def _may_be_file(word: str) -> bool:
    """A plain word is a file only if it exists."""
    return word.startswith("-") or not word.replace("-", "").replace("_", "").isalnum() or Path(word).exists()


def as_daemon(words: Sequence[str]) -> list[str]:
    """Drop everything up to Java's main class. `java -version`, which one launcher tries, becomes `--version`."""
    if list(words) == ["-version"]:
        return ["--version"]
    place = next((number for number, word in enumerate(words) if word in MAIN_CLASSES), None)
    if place is None:
        return list(words)
    passed_over = [f"{PASSED_OVER}={word}" for word in words[: place + 1]]
    return ["run", *passed_over, *words[place + 1 :]]


@click.command("run", short_help="Run the daemon with a properties file or one function (default).")
@click.argument("file", metavar="[FILE | STREAM", required=False, type=click.Path(path_type=Path))
@click.argument("function", metavar="MODULE:FUNCTION]", required=False)
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
@with_function_options
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
@click.option(*CLASS_PATH, multiple=True, hidden=True)
@click.option("-e", "--execute", is_flag=True, hidden=True)
def run(
    *,
    file: Path | None,
    function: str | None,
    options: FunctionOptions,
    properties_file: Path | None,
    log_configuration: Path | None,
    log_level: str | None,
    log_format: Literal["console", "json", "auto"],
    passed_over: tuple[str, ...],
    java: tuple[str, ...],
    class_path: tuple[str, ...],
    execute: bool,  # noqa: ARG001 - what a launcher does by this is what is done anyway
) -> None:
    """Run the daemon with a properties file, or with one function, until a signal stops it.

    Options from --application to --print-properties are for a function.
    """
    chosen = properties_file or file
    if chosen is None:
        raise click.UsageError("no properties file given: kcl-daemon --properties FILE")
    if function is None and options.given():
        raise click.UsageError(
            f"{options.given()[0]} is for a function: kcl-daemon run STREAM MODULE:FUNCTION"
        )
    # --help must not wait for the AWS SDK.
    from kcl_daemon.cli.run import RunRequest, run_daemon
    from kcl_daemon.telemetry.logs import parse_levels

    try:
        levels = None if log_level is None else parse_levels(log_level)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--log-level") from None
    request = RunRequest(
        ignored_file=file if properties_file is not None else None,
        log_configuration=log_configuration,
        log_levels=levels,
        log_form=log_format,
        passed_over=(*passed_over, *java, *class_path),
    )
    if function is None:
        run_daemon(chosen, request)
    elif properties_file is not None:
        raise click.UsageError(
            "a function has no properties file: give properties with --set, or set executableName in the file"
        )
    else:
        from kcl_daemon.cli.run_start import start

        words = [f"--log-format={log_format}", *([] if log_level is None else [f"--log-level={log_level}"])]
        start(str(file), function, options, request, log_words=words)


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"kcl-daemon {__version__}")
        context.exit()


main: Final = CommandGroup(
    name="kcl-daemon",
    help="Process an Amazon Kinesis data stream with a program in any language.\n\nRuns the program of "
    "executableName once per shard and talks to it with the MultiLangDaemon protocol.",
    epilog=_EPILOG,
    default=run,
    later=LATER,
    groups=GROUPS,
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
