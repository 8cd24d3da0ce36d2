"""The commands of `kcl-daemon`: imported only when they run, so `--help` stays fast."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Final

import click

from kcl_daemon.wings import WINGS, LaterCommand, imported

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Start (details of a command: COMMAND --help)": ("run", "init", "demo", "local"),
    "Test a program": ("run-child", "put", "replay-transcript", "prove"),
    "Deploy": ("check", "iam-policy", "packaging", "completion"),
    "Look": ("status", "top", "watch", "capacity", "tail", "peek"),
    "Operate": ("leases", "pause", "resume", "limit", "letters", "replay"),
    "Spark and landing logs": ("landing", "spark-submit"),
    "Move from another KCL": ("migrate", "helper"),
}
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
    "watch": (f"kcl-daemon watch {_FILE} --once", f"kcl-daemon watch {_FILE} --serve 127.0.0.1:8082"),
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
    "put": ("kcl-daemon put orders records.txt --key order.id", "kcl-daemon put --local orders --aggregate"),
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


LATER: Final[Mapping[str, LaterCommand]] = {
    "check": LaterCommand("kcl_daemon.cli.check:check", "Show what a properties file means, and its errors."),
    "completion": LaterCommand("kcl_daemon.cli.helper:completion", "Print the completion script of a shell."),
    "helper": LaterCommand(
        "kcl_daemon.cli.helper:helper",
        "Print the command that starts the daemon, like the helpers of the client libraries.",
    ),
    "iam-policy": LaterCommand(
        "kcl_daemon.cli.iam_policy:iam_policy", "Print the IAM permissions that the daemon needs."
    ),
    "init": LaterCommand(
        "kcl_daemon.cli.init:init", "Write a new project: processor, test, properties, image, unit."
    ),
    "leases": LaterCommand(
        "kcl_daemon.cli.leases.command:leases",
        "Show which worker reads which shard and why; move, reset and delete leases.",
    ),
    "limit": LaterCommand(
        "kcl_daemon.cli.leases.holds:limit", "Limit the records or bytes a second that children get."
    ),
    "packaging": LaterCommand(
        "kcl_daemon.cli.packaging:packaging",
        "Print or write files for systemd, Kubernetes and others, and the documentation.",
    ),
    "pause": LaterCommand(
        "kcl_daemon.cli.leases.holds:pause", "Give no records to children, for a shard, a stream or all."
    ),
    "replay": LaterCommand(
        "kcl_daemon.cli.replay:replay", "Read a time range once more, beside the live application."
    ),
    "replay-transcript": LaterCommand(
        "kcl_daemon.cli.replay_transcript:replay_transcript", "Replay a recorded session with a processor."
    ),
    "resume": LaterCommand("kcl_daemon.cli.leases.holds:resume", "End a pause."),
    "run-child": LaterCommand(
        "kcl_daemon.cli.run_child:run_child", "Test a processor with a file of records, without a stream."
    ),
    "status": LaterCommand(
        "kcl_daemon.cli.status:status",
        "Show the state of a running daemon; the exit code says whether it is ready.",
    ),
    "top": LaterCommand(
        "kcl_daemon.cli.status:top", "Show the same as a live view.", extra="terminal", modules=("rich",)
    ),
    **{name: command for wing in WINGS for name, command in wing.commands.items()},
}


class ExtraMissing(click.ClickException):
    exit_code = 2


def need_extra(name: str, extra: str, modules: Sequence[str]) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ExtraMissing(
            f"`{name}` needs packages that are not installed ({', '.join(missing)}); "
            f'install them with: pip install "kcl-daemon[{extra}]"'
        )


def load_command(name: str, later: LaterCommand) -> click.Command:
    need_extra(name, later.extra, later.modules)
    command = imported(later.where)
    assert isinstance(command, click.Command), f"{later.where} is a click command"
    return command


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
