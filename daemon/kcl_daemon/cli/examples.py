"""The examples that each `--help` shows, and the shape of every help: usage, examples, options, exit codes.

A test parses every line as the program would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

_FILE: Final = "app.properties"
_CHILD: Final = "-- python3 consumer.py"

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (f"kcl-daemon {_FILE}", f"kcl-daemon check {_FILE}", "kcl-daemon demo"),
    "run": (f"kcl-daemon run {_FILE} --log-level info,kcl_daemon.retrieval=debug",),
    "demo": ("kcl-daemon demo --shards 2 --seconds 10",),
    "check": (f"kcl-daemon check {_FILE} --with-aws",),
    "completion": (
        'eval "$(kcl-daemon completion bash)"',
        "kcl-daemon completion fish > ~/.config/fish/completions/kcl-daemon.fish",
    ),
    "helper": (f"kcl-daemon helper --print_command --properties {_FILE}",),
    "iam-policy": (f"kcl-daemon iam-policy {_FILE} --account 123456789012",),
    "leases": (f"kcl-daemon leases list {_FILE} --lag",),
    "leases list": (f"kcl-daemon leases list {_FILE} --lag",),
    "leases explain": (f"kcl-daemon leases explain {_FILE} --watch 12",),
    "leases tree": (f"kcl-daemon leases tree {_FILE}",),
    "leases reset": (
        f"kcl-daemon leases reset {_FILE} --to TRIM_HORIZON --dry-run",
        f"kcl-daemon leases reset {_FILE} --to 2026-11-20T12:00:00Z --shard shardId-000000000003",
    ),
    "leases release": (f"kcl-daemon leases release {_FILE} --worker w-3 --dry-run",),
    "leases delete": (f"kcl-daemon leases delete {_FILE} --shard shardId-000000000003 --dry-run",),
    "leases skip": (f"kcl-daemon leases skip {_FILE} --shard shardId-000000000003 --dry-run",),
    "local": ("kcl-daemon local --stream orders:4 --write local.env",),
    "migrate": (f"kcl-daemon migrate status {_FILE}",),
    "migrate status": (f"kcl-daemon migrate status {_FILE} --json",),
    "migrate rollback": (f"kcl-daemon migrate rollback {_FILE}",),
    "migrate rollforward": (f"kcl-daemon migrate rollforward {_FILE}",),
    "packaging": ("kcl-daemon packaging systemd", "kcl-daemon packaging kubernetes --write deploy"),
    "replay": (f"kcl-daemon replay session.jsonl {_CHILD}",),
    "run-child": (
        f"kcl-daemon run-child --records records.jsonl {_CHILD}",
        f"kcl-daemon run-child --records lines.txt --transcript session.jsonl {_CHILD}",
    ),
    "status": (f"kcl-daemon status {_FILE}", "kcl-daemon status --url http://127.0.0.1:8080 --quiet"),
    "top": (f"kcl-daemon top {_FILE} --every 5",),
}


def add_examples(command: click.Command, path: str) -> None:
    """Put its examples in front of what the help of a command ends with, and do the same for its subcommands.

    Args:
        command: changed in place; a second call changes nothing.
        path: its words behind the program's name; empty: the program itself.
    """
    lines = EXAMPLES.get(path, ())
    text = "\b\n" + "\n".join(
        ["Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)]
    )
    if lines and not (command.epilog or "").startswith(text):
        command.epilog = f"{text}\n\n{command.epilog or ''}"
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            add_examples(each, f"{path} {name}".strip())
