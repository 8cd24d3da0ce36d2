"""The `kcl-daemon` program: commands, options, help and exit codes.

A first word that is a file or an option belongs to `run`; so does a Java command line for MultiLangDaemon.
`helper` replaces `amazon_kclpy_helper.py`, Node's `kcl-bootstrap` and .NET's `Bootstrap`.

Commands are imported only when they run, so `--help` stays fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem, get_completion_class

from kcl_daemon import __version__, interrupt
from kcl_daemon.cli.run_options import SPELLINGS, FunctionOptions, with_function_options


class ExtraMissing(click.ClickException):
    """Raised when a command needs an extra of this distribution that is not installed."""

    exit_code = 2


class LaterCommand(NamedTuple):
    """`where` is `package.module:attribute`; `modules` are the top-level packages of `extra`."""

    where: str
    summary: str
    extra: str = ""
    modules: tuple[str, ...] = ()


def need_extra(name: str, extra: str, modules: Sequence[str]) -> None:
    """ExtraMissing says how to install the extra that has these modules."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ExtraMissing(
            f"`{name}` needs packages that are not installed ({', '.join(missing)}); "
            f'install them with: pip install "kcl-daemon[{extra}]"'
        )


def load_command(name: str, later: LaterCommand) -> click.Command:
    """ExtraMissing says how to install the extra."""
    need_extra(name, later.extra, later.modules)
    module, _, attribute = later.where.partition(":")
    command: object = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command), f"{later.where} is a click command"
    return command


class NoSuchCommand(click.UsageError):
    """Raised when the first word is neither a command nor a file."""

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
        """Insert the default command if no command or own option comes first.

        NoSuchCommand if the first word cannot be a file.
        """
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
        # Those of a function are in the help of the command.
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


MAIN_CLASSES: Final = (
    "software.amazon.kinesis.multilang.MultiLangDaemon",
    "com.amazonaws.services.kinesis.multilang.MultiLangDaemon",  # KCL 1.x
)
PASSED_OVER: Final = "--passed-over"
"""Hidden option of `run`: words only for Java, which are logged."""


def as_daemon(words: Sequence[str]) -> list[str]:
    """Drop everything up to Java's main class.

    `java -version`, which one launcher tries, becomes `--version`.
    """
    if list(words) == ["-version"]:
        return ["--version"]
    place = next((number for number, word in enumerate(words) if word in MAIN_CLASSES), None)
    if place is None:
        return list(words)
    passed_over = [f"{PASSED_OVER}={word}" for word in words[: place + 1]]
    return ["run", *passed_over, *words[place + 1 :]]


_PROGRAM: Final = "kcl-daemon"
_NO_SAMPLE: Final = (
    "this package has no sample file; `kcl-daemon demo` shows everything without an AWS account"
)


@click.command("helper")
@click.option(
    "--print_command",
    "--print-command",
    "print_command",
    is_flag=True,
    help="Print the command (default).",
)
@click.option(
    "--print_classpath",
    "--print-classpath",
    "print_classpath",
    is_flag=True,
    help="Print an empty line: no Java, no class path.",
)
@click.option("-e", "--execute", is_flag=True, help="Run the daemon instead of printing the command.")
@click.option(
    "-p",
    "--properties",
    "--props",
    "--prop",
    "properties",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The properties file.",
)
@click.option("-l", "--log-configuration", metavar="FILE", help="Passed to the daemon.")
@click.option("--sample", "--sample-props", "--use-sample-properties", "sample", is_flag=True, hidden=True)
@click.option("-j", "--java", metavar="PATH", help="Accepted and ignored.")
@click.option(
    "-c",
    "--classpath",
    "--path",
    "--jar-path",
    "--jar-folder",
    "class_path",
    metavar="PATH",
    multiple=True,
    help="Accepted and ignored.",
)
def helper(
    *,
    print_command: bool,
    print_classpath: bool,
    execute: bool,
    properties: Path | None,
    log_configuration: str | None,
    sample: bool,
    java: str | None,
    class_path: tuple[str, ...],
) -> None:
    """Print the command that starts the daemon, quoted for a shell; with --execute, run it.

    Accepts the flags of the client libraries' helpers, so it can replace them.
    """
    if sample:
        raise click.UsageError(_NO_SAMPLE)
    if print_classpath:
        click.echo("")
        if not print_command:
            return
    if properties is None:
        raise click.UsageError(
            "no properties file given: kcl-daemon helper --print_command --properties FILE"
        )
    if java is not None or class_path:
        click.echo("java and class path are not needed and are ignored", err=True)
    words = ["--properties", str(properties)]
    if log_configuration is not None:
        words += ["--log-configuration", log_configuration]
    if execute:
        _become(words)
    click.echo(shlex.join([program(), *words]))


def program() -> str:
    """The name of this program if PATH has it, else its full path."""
    started = Path(sys.argv[0])
    found = shutil.which(_PROGRAM)
    if found is None and started.name == _PROGRAM:
        return str(started.resolve())
    return _PROGRAM


def _become(words: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "kcl_daemon", *words])  # noqa: S606 - ourselves


VARIABLE: Final = "_KCL_DAEMON_COMPLETE"
"""If this variable is set, the program prints completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script that lets a shell complete commands, options and files.

    Evaluate it in the start file of the shell: ~/.bashrc (bash 4.4 or newer), ~/.zshrc after `compinit`.
    """
    found = get_completion_class(shell)
    assert found is not None, f"click knows {shell}"
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, _PROGRAM, VARIABLE).source())


_FILE: Final = "app.properties"
_CHILD: Final = "-- python3 consumer.py"

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (f"kcl-daemon {_FILE}", f"kcl-daemon check {_FILE}", "kcl-daemon demo"),
    "run": (
        f"kcl-daemon run {_FILE} --log-level info,kcl_daemon.retrieval=debug",
        "kcl-daemon run orders consumer:handle --local --reload",
        "kcl-daemon run orders consumer:handle --region eu-west-1 --print-properties",
    ),
    "demo": ("kcl-daemon demo --shards 2 --seconds 10",),
    "check": (f"kcl-daemon check {_FILE} --with-aws", "kcl-daemon check --schema > kcl-daemon.schema.json"),
    "capacity": (f"kcl-daemon capacity {_FILE}", f"kcl-daemon capacity {_FILE} --serve 127.0.0.1:8081"),
    "completion": (
        'eval "$(kcl-daemon completion bash)"',
        "kcl-daemon completion fish > ~/.config/fish/completions/kcl-daemon.fish",
    ),
    "helper": (f"kcl-daemon helper --print_command --properties {_FILE}",),
    "iam-policy": (f"kcl-daemon iam-policy {_FILE} --account 123456789012",),
    "init": ("kcl-daemon init shop --language node --stream orders",),
    "landing": (f"kcl-daemon landing status {_FILE}",),
    "landing status": ("kcl-daemon landing status s3://bucket/prefix",),
    "landing verify": ("kcl-daemon landing verify s3://bucket/prefix --jobs 16",),
    "landing compact": (f"kcl-daemon landing compact {_FILE} --dry-run",),
    "landing expire": (
        f"kcl-daemon landing expire {_FILE} --older-than 7d --dry-run",
        f"kcl-daemon landing expire {_FILE} --all-readers",
    ),
    "leases": (f"kcl-daemon leases list {_FILE} --lag",),
    "leases list": (f"kcl-daemon leases list {_FILE} --lag",),
    "leases explain": (f"kcl-daemon leases explain {_FILE} --watch 12",),
    "leases tree": (f"kcl-daemon leases tree {_FILE}",),
    "leases reset": (
        f"kcl-daemon leases reset {_FILE} --to TRIM_HORIZON --dry-run",
        f"kcl-daemon leases reset {_FILE} --to 2026-11-20T12:00:00Z --shard shardId-000000000003",
    ),
    "leases adopt": (f"kcl-daemon leases adopt {_FILE} --dry-run",),
    "leases release": (f"kcl-daemon leases release {_FILE} --worker w-3 --dry-run",),
    "leases delete": (f"kcl-daemon leases delete {_FILE} --shard shardId-000000000003 --dry-run",),
    "leases skip": (f"kcl-daemon leases skip {_FILE} --shard shardId-000000000003 --dry-run",),
    "limit": (f"kcl-daemon limit {_FILE} 500/s --reason 'the sink is slow'", f"kcl-daemon limit {_FILE} off"),
    "letters": (f"kcl-daemon letters list --properties {_FILE}",),
    "letters list": ("kcl-daemon letters list dead.jsonl --cause rejected --since 2d",),
    "letters show": (f"kcl-daemon letters show --properties {_FILE} 000000000003-49590338271490256608-0",),
    "letters replay": (
        f"kcl-daemon letters replay --properties {_FILE}",
        f"kcl-daemon letters replay s3://bucket/dead --receipts receipts.jsonl {_CHILD}",
    ),
    "letters delete": ("kcl-daemon letters delete dead.jsonl --done dead.jsonl.receipts",),
    "local": ("kcl-daemon local --stream orders:4 --write local.env",),
    "migrate": (f"kcl-daemon migrate status {_FILE}",),
    "migrate status": (f"kcl-daemon migrate status {_FILE} --json",),
    "migrate rollback": (f"kcl-daemon migrate rollback {_FILE}",),
    "migrate rollforward": (f"kcl-daemon migrate rollforward {_FILE}",),
    "packaging": ("kcl-daemon packaging systemd", "kcl-daemon packaging kubernetes --write deploy"),
    "pause": (
        f"kcl-daemon pause {_FILE} --for 30m --reason 'the sink is down'",
        f"kcl-daemon pause {_FILE} --shard shardId-000000000003 --reason 'bad records'",
        f"kcl-daemon pause {_FILE} --list",
    ),
    "peek": (f"kcl-daemon peek {_FILE}", f"kcl-daemon peek {_FILE} --shard 3 --count 5 --json"),
    "prove": (
        "kcl-daemon prove --local",
        "kcl-daemon prove --estimate",
        "kcl-daemon prove --region eu-west-1 --most 2 --report proof",
    ),
    "put": (
        "kcl-daemon put orders records.txt --key order.id",
        "kcl-daemon put --local orders --aggregate",
    ),
    "replay": (
        f"kcl-daemon replay {_FILE} --from 2026-11-20T12:00:00Z --to 2026-11-20T13:00:00Z {_CHILD}",
        f"kcl-daemon replay {_FILE} --from -2h --to -1h --limit 500/s",
    ),
    "replay-transcript": (f"kcl-daemon replay-transcript session.jsonl {_CHILD}",),
    "resume": (f"kcl-daemon resume {_FILE}",),
    "run-child": (
        f"kcl-daemon run-child --records records.jsonl {_CHILD}",
        f"kcl-daemon run-child --records lines.txt --transcript session.jsonl {_CHILD}",
    ),
    "spark-submit": (
        f"kcl-daemon spark-submit {_FILE} --master yarn --deploy-mode cluster",
        f"kcl-daemon spark-submit {_FILE} --master local[2] -- --conf spark.ui.enabled=false",
    ),
    "status": (f"kcl-daemon status {_FILE}", "kcl-daemon status --url http://127.0.0.1:8080 --quiet"),
    "tail": (
        "kcl-daemon tail orders --since 10m",
        'kcl-daemon tail orders --json --filter \'{"data": {"type": ["paid"]}}\'',
        "kcl-daemon tail --local orders --from TRIM_HORIZON --until tip",
    ),
    "top": (f"kcl-daemon top {_FILE} --every 5",),
}


def add_examples(command: click.Command, path: str) -> None:
    """Add the examples to the epilogs of a command and its subcommands; a second call changes nothing."""
    lines = EXAMPLES.get(path, ())
    text = "\b\n" + "\n".join(
        ["Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)]
    )
    if lines and not (command.epilog or "").startswith(text):
        command.epilog = f"{text}\n\n{command.epilog or ''}"
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            add_examples(each, f"{path} {name}".strip())


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


LOCAL: Final = ("aiohttp", "flask", "flask_cors", "moto")
_LATER: Final[Mapping[str, LaterCommand]] = {
    "demo": LaterCommand(
        "kcl_local.demo.command:demo",
        "Try everything on this machine, without an AWS account.",
        extra="local",
        modules=(*LOCAL, "rich"),
    ),
    "capacity": LaterCommand(
        "kcl_daemon.cli.capacity:capacity",
        "Show lag, when it is over, what holds it back, and workers wanted.",
    ),
    "check": LaterCommand("kcl_daemon.cli.check:check", "Show what a properties file means, and its errors."),
    "completion": LaterCommand("kcl_daemon.cli.root:completion", "Print the completion script of a shell."),
    "helper": LaterCommand(
        "kcl_daemon.cli.root:helper",
        "Print the command that starts the daemon, like the helpers of the client libraries.",
    ),
    "iam-policy": LaterCommand(
        "kcl_daemon.cli.iam_policy:iam_policy", "Print the IAM permissions that the daemon needs."
    ),
    "init": LaterCommand(
        "kcl_daemon.cli.init:init", "Write a new project: processor, test, properties, image, unit."
    ),
    "landing": LaterCommand(
        "kcl_daemon.cli.landing:landing",
        "Show, verify, compact and expire a landing log.",
        extra="landing",
        modules=("pyarrow",),
    ),
    "leases": LaterCommand(
        "kcl_daemon.cli.leases.command:leases",
        "Show which worker reads which shard and why; move, reset and delete leases.",
    ),
    "limit": LaterCommand(
        "kcl_daemon.cli.leases.holds:limit", "Limit the records or bytes a second that children get."
    ),
    "letters": LaterCommand(
        "kcl_daemon.cli.letters.command:letters",
        "Show dead letters, give them to a program again, delete them.",
    ),
    "local": LaterCommand(
        "kcl_local.server:local",
        "Run local Kinesis, DynamoDB, STS and CloudWatch endpoints.",
        extra="local",
        modules=LOCAL,
    ),
    "migrate": LaterCommand("kcl_daemon.cli.migrate:migrate", "Show and control the migration from KCL 2.x."),
    "packaging": LaterCommand(
        "kcl_daemon.cli.packaging:packaging",
        "Print or write files for systemd, Kubernetes and others, and the documentation.",
    ),
    "pause": LaterCommand(
        "kcl_daemon.cli.leases.holds:pause", "Give no records to children, for a shard, a stream or all."
    ),
    "peek": LaterCommand(
        "kcl_daemon.cli.stream.peek:peek", "Show the record that an application gets next in each shard."
    ),
    "prove": LaterCommand(
        "kcl_prove.command:prove",
        "Prove in your own AWS account, or with --local without one, that nothing is lost.",
    ),
    "put": LaterCommand("kcl_daemon.cli.stream.put:put", "Put lines of stdin or files into a stream."),
    "replay": LaterCommand(
        "kcl_daemon.cli.replay:replay", "Read a time range once more, beside the live application."
    ),
    "replay-transcript": LaterCommand(
        "kcl_daemon.cli.run_child:replay_transcript", "Replay a recorded session with a processor."
    ),
    "resume": LaterCommand("kcl_daemon.cli.leases.holds:resume", "End a pause."),
    "run-child": LaterCommand(
        "kcl_daemon.cli.run_child:run_child", "Test a processor with a file of records, without a stream."
    ),
    "spark-submit": LaterCommand(
        "kcl_daemon.cli.spark_submit:spark_submit",
        "Run the pipeline on your own Spark, over the landing log.",
    ),
    "status": LaterCommand(
        "kcl_daemon.cli.status:status",
        "Show the state of a running daemon; the exit code says whether it is ready.",
    ),
    "tail": LaterCommand("kcl_daemon.cli.stream.tail:tail", "Follow a stream and show its records."),
    "top": LaterCommand(
        "kcl_daemon.cli.status:top", "Show the same as a live view.", extra="terminal", modules=("rich",)
    ),
}


_GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Start (details of a command: COMMAND --help)": ("run", "init", "demo", "local"),
    "Test a program": ("run-child", "put", "replay-transcript", "prove"),
    "Deploy": ("check", "iam-policy", "packaging", "completion"),
    "Look": ("status", "top", "capacity", "tail", "peek"),
    "Operate": ("leases", "pause", "resume", "limit", "letters", "replay"),
    "Spark and landing logs": ("landing", "spark-submit"),
    "Move from another KCL": ("migrate", "helper"),
}


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
    later=_LATER,
    groups=_GROUPS,
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
