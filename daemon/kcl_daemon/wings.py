"""What stands around the core: each wing with what it brings, and nothing of it is imported before that is used.

The core is leases, shards, assignment, the fleet, retrieval, consumers, children, transport, settings, progress and telemetry.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LOCAL: Final = ("aiohttp", "flask", "flask_cors", "moto")


class LaterCommand(NamedTuple):
    """`where` is `package.module:attribute`; `modules` are the top-level packages of `extra`."""

    where: str
    summary: str
    extra: str = ""
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """What a wing brings.

    Args:
        topic: of its properties, in their reference.
        properties: their fields in `Settings`, or the settings they are in.
        helper: the class of its process beside the daemon, by the property that asks for it.
        page: of the documents, about all of it.
    """

    topic: str = ""
    properties: tuple[str, ...] = ()
    helper: tuple[str, str] | None = None
    commands: Mapping[str, LaterCommand] = field(default_factory=dict[str, LaterCommand])
    page: str


WINGS: Final = (
    Wing(topic="Streams of DynamoDB tables", properties=("changes",), page="dynamodb-streams.md"),
    Wing(topic="Several children for a shard", properties=("concurrency",), page="concurrency.md"),
    Wing(
        topic="Failures and dead letters",
        properties=("failures",),
        page="failures.md",
        commands={
            "letters": LaterCommand(
                "kcl_daemon.cli.letters.command:letters",
                "Show dead letters, give them to a program again, delete them.",
            )
        },
    ),
    Wing(
        topic="Lag and workers wanted",
        properties=("capacity",),
        page="scaling.md",
        commands={
            "capacity": LaterCommand(
                "kcl_daemon.cli.capacity:capacity",
                "Show lag, when it is over, what holds it back, and workers wanted.",
            )
        },
    ),
    Wing(
        page="watch.md",
        commands={
            "watch": LaterCommand(
                "kcl_daemon.cli.watch.command:watch",
                "Watch from outside whether every shard is read; alert on it.",
            )
        },
    ),
    Wing(
        topic="Migration from KCL 2.x",
        properties=(
            "leases.client_version_config",
            "leases.max_leases_to_steal",
            "leases.priority_assignment",
        ),
        page="operations-migrate.md",
        commands={
            "migrate": LaterCommand(
                "kcl_daemon.cli.migrate:migrate", "Show and control the migration from KCL 2.x."
            )
        },
    ),
    Wing(
        topic="Landing log",
        properties=("landing",),
        helper=("landing", "kcl_daemon.landing:Lander"),
        page="landing.md",
        commands={
            "landing": LaterCommand(
                "kcl_daemon.cli.landing:landing",
                "Show, verify, compact and expire a landing log.",
                extra="landing",
                modules=("pyarrow",),
            )
        },
    ),
    Wing(
        topic="Spark",
        properties=("spark",),
        helper=("sparkPipeline", "kcl_daemon.spark:SparkEngine"),
        page="spark.md",
        commands={
            "spark-submit": LaterCommand(
                "kcl_daemon.cli.spark_submit:spark_submit",
                "Run the pipeline on your own Spark, over the landing log.",
            )
        },
    ),
    Wing(topic="Schemas", properties=("schemas",), page="schema-registry.md"),
    Wing(
        page="tail.md",
        commands={
            "tail": LaterCommand("kcl_daemon.cli.stream.tail:tail", "Follow a stream and show its records."),
            "put": LaterCommand(
                "kcl_daemon.cli.stream.put:put", "Put lines of stdin or files into a stream."
            ),
            "peek": LaterCommand(
                "kcl_daemon.cli.stream.peek:peek",
                "Show the record that an application gets next in each shard.",
            ),
        },
    ),
    Wing(
        page="local.md",
        commands={
            "demo": LaterCommand(
                "kcl_local.demo.command:demo",
                "Try everything on this machine, without an AWS account.",
                extra="local",
                modules=(*LOCAL, "rich"),
            ),
            "local": LaterCommand(
                "kcl_local.server:local",
                "Run local Kinesis, DynamoDB, STS and CloudWatch endpoints.",
                extra="local",
                modules=LOCAL,
            ),
        },
    ),
    Wing(
        page="prove.md",
        commands={
            "prove": LaterCommand(
                "kcl_prove.command:prove",
                "Prove in your own AWS account, or with --local without one, that nothing is lost.",
            )
        },
    ),
)
HELPERS: Final = dict(wing.helper for wing in WINGS if wing.helper is not None)
PAGES: Final[Mapping[str, str]] = {wing.topic: wing.page for wing in WINGS}


def imported(where: str) -> object:
    """What `package.module:attribute` names."""
    module, _, attribute = where.partition(":")
    found: object = getattr(importlib.import_module(module), attribute)
    return found
