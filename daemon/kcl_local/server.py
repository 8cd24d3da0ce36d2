"""Ends with a signal or the end of stdin."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, Literal, NoReturn

import anyio
import click
import orjson
from anyio import CancelScope, to_thread

from kcl_local import ACCESS
from kcl_local.changes.model import StreamsModel
from kcl_local.changes.stream import DEFAULTS as STREAMS
from kcl_local.changes.stream import StreamsOptions
from kcl_local.changes.tables import NewTable
from kcl_local.dynamodb import DynamoDbServer
from kcl_local.kinesis.arguments import DEFAULTS, FanOutRules, KinesisOptions, ReadLimits, ServiceError
from kcl_local.kinesis.http import application
from kcl_local.kinesis.model import KinesisModel
from kcl_local.place import announced, lead
from kcl_local.serving import serve

_FAN_OUT: Final = FanOutRules()
_SHARDS_MAX: Final = 10_000
_TABLE: Final = re.compile(r"([a-zA-Z0-9_.-]{3,255})(?::([1-9][0-9]{0,3})(?::([^:,]+)(?:,([^:,]+))?)?)?")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Call the `kinesis` model only from the event loop of the endpoints."""

    kinesis_url: str
    dynamodb_url: str
    cloudwatch_url: str
    s3_url: str
    kinesis: KinesisModel
    dynamodb: DynamoDbServer


@asynccontextmanager
async def local_endpoints(
    kinesis: KinesisOptions = DEFAULTS,
    *,
    streams: StreamsOptions = STREAMS,
    tables: Sequence[NewTable] = (),
    kinesis_port: int = 0,
    dynamodb_port: int = 0,
    cloudwatch_port: int = 0,
    s3_port: int = 0,
    now: Callable[[], float] = time.time,  # noqa: TID251 - the endpoints live in real time
    prepare: Callable[[KinesisModel], None] | None = None,
) -> AsyncGenerator[Endpoints, None]:
    """Needs anyio's asyncio backend. Kinesis runs on this event loop.

    `prepare` creates Kinesis streams before the endpoint answers.

    Raises:
        ValueError: two tables have one name.
        OSError: a port is not available.
        RuntimeError: this process already has a DynamoDB server.
    """
    model = KinesisModel(now, kinesis)
    dynamodb = DynamoDbServer(dynamodb_port, cloudwatch_port, s3_port, StreamsModel(now, streams))
    if prepare is not None:
        prepare(model)
    try:
        await to_thread.run_sync(dynamodb.start)
        for table in tables:
            dynamodb.dynamodb.streams.tables.create(table)
        async with serve(application(model), kinesis_port) as kinesis_url:
            urls = (kinesis_url, dynamodb.url, dynamodb.cloudwatch_url, dynamodb.s3_url)
            yield Endpoints(*urls, model, dynamodb)
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(dynamodb.stop)


Form = Literal["shell", "env", "json"]
NewStream = tuple[str, int]
"""Name, or the ARN of a stream in another account, and number of shards."""


def _parse_stream(text: str) -> NewStream:
    prefix, slash, last = text.rpartition("/")
    name, colon, count = last.partition(":")
    if not name or (colon and not (count.isascii() and count.isdigit() and 0 < int(count) <= _SHARDS_MAX)):
        raise click.BadParameter(
            f"{text!r} is not a stream name, or a name and a shard count such as orders:4"
        )
    return prefix + slash + name, int(count or 1)


def _parse_table(text: str) -> NewTable:
    match = _TABLE.fullmatch(text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a table name, or a name and a shard count such as orders:4, or these and the names of "
            "its keys such as orders:4:customer,at"
        )
    name, shards, *keys = match.groups()
    return NewTable(name, int(shards or 1), tuple(key for key in keys if key) or ("id",))


def _port(option: str, service: str) -> click.Option:
    return click.Option(
        [option],
        type=click.IntRange(0, 65_535),
        default=0,
        show_default="any free port",
        metavar="PORT",
        help=f"Port of {service} on 127.0.0.1.",
    )


def _seconds(option: str, default: float, text: str, least: float = 0) -> click.Option:
    return click.Option(
        [option],
        type=click.FloatRange(min=least),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


_PARAMETERS: Final[list[click.Parameter]] = [
    click.Option(
        ["--stream", "streams"],
        multiple=True,
        type=_parse_stream,
        metavar="NAME[:SHARDS]",
        help="Create this stream; repeatable.",
    ),
    click.Option(
        ["--table", "tables"],
        multiple=True,
        type=_parse_table,
        metavar="NAME[:SHARDS[:KEYS]]",
        help="Create this DynamoDB table with a stream; repeatable. Its key is the string `id`, or the one or two "
        "strings of KEYS.",
    ),
    _port("--kinesis-port", "Kinesis"),
    _port("--dynamodb-port", "DynamoDB and its streams, STS and Glue"),
    _port("--cloudwatch-port", "CloudWatch"),
    _port("--s3-port", "S3, SNS and SQS"),
    click.Option(
        ["--format", "form"],
        type=click.Choice(["shell", "env", "json"]),
        default="shell",
        show_default=True,
        help="Format of the endpoints: export lines, NAME=value lines, or one line of JSON.",
    ),
    click.Option(
        ["--write", "file"],
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write them to a file instead of printing them.",
    ),
    click.Option(
        ["--throttle"], is_flag=True, help="Throttle reads above 5 per second and 2 MiB per second and shard."
    ),
    _seconds("--iterator-ttl-s", DEFAULTS.iterator_ttl_s, "Lifetime of iterators."),
    _seconds(
        "--shard-life-s", STREAMS.shard_life_s, "How long a shard of a DynamoDB stream is open, about.", 1
    ),
    _seconds("--creating-s", 0.0, "How long a new stream is CREATING."),
    _seconds("--consumer-creating-s", 0.0, "How long a new fan-out consumer is CREATING."),
    _seconds("--subscription-s", _FAN_OUT.lasts_s, "Lifetime of subscriptions."),
    _seconds("--idle-event-s", _FAN_OUT.idle_s, "Time between events without records."),
    click.Option(["--until-eof"], is_flag=True, help="Also end when stdin, a pipe or terminal, is closed."),
]


def _run(
    *,
    streams: tuple[NewStream, ...],
    tables: tuple[NewTable, ...],
    kinesis_port: int,
    dynamodb_port: int,
    cloudwatch_port: int,
    s3_port: int,
    form: Form,
    file: Path | None,
    throttle: bool,
    iterator_ttl_s: float,
    shard_life_s: float,
    creating_s: float,
    consumer_creating_s: float,
    subscription_s: float,
    idle_event_s: float,
    until_eof: bool,
) -> None:
    kinesis = KinesisOptions(
        limits=ReadLimits() if throttle else None,
        iterator_ttl_s=iterator_ttl_s,
        creating_s=creating_s,
        fan_out=FanOutRules(creating_s=consumer_creating_s, lasts_s=subscription_s, idle_s=idle_event_s),
    )
    serving = local_endpoints(
        kinesis,
        streams=StreamsOptions(shard_life_s=shard_life_s),
        tables=tables,
        kinesis_port=kinesis_port,
        dynamodb_port=dynamodb_port,
        cloudwatch_port=cloudwatch_port,
        s3_port=s3_port,
        prepare=partial(_create, streams),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit_at_once)  # until the loop handles signals
    lead(os.environ, {})  # a profile that does not exist would keep the SDK below from starting
    _report("starting Kinesis, DynamoDB, STS, Glue, CloudWatch, S3, SNS and SQS on 127.0.0.1")
    try:
        anyio.run(_serve, serving, partial(_announce, form, file), until_eof)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot serve: {error}") from error


local: Final = click.Command(
    "local",
    callback=_run,
    params=_PARAMETERS,
    short_help="Run local endpoints of Kinesis, DynamoDB, S3 and more.",
    help="Run Kinesis, DynamoDB and its streams, STS, Glue, CloudWatch, S3, SNS and SQS endpoints on loopback, in memory, until "
    "SIGINT or SIGTERM.\n\nWhen all endpoints answer, prints environment variables that point any AWS SDK at them; "
    "the credentials are not checked.",
)


def _announce(form: Form, file: Path | None, endpoints: Endpoints) -> None:
    text = endpoints_text(endpoints, form)
    if file is None:
        click.echo(text)
        _report("serving; Ctrl-C ends it; paste the lines above into another terminal, then start the daemon")
        return
    file.write_text(f"{text}\n", "utf-8")
    name = shlex.quote(str(file))
    place = name if "/" in name else f"./{name}"  # the shell looks for a name without slash in PATH
    source = f". {place}" if form == "shell" else f"see {place}"
    click.echo(f"serving; Ctrl-C ends it; in another terminal: {source}", err=True)


def _report(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(text, err=True)


def _exit_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


async def _serve(
    serving: AbstractAsyncContextManager[Endpoints], announce: Callable[[Endpoints], None], until_eof: bool
) -> None:
    async with serving as endpoints:
        with (
            anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
            announced(environment_of(endpoints)),
        ):
            announce(endpoints)
            async with anyio.create_task_group() as tasks:
                if until_eof:
                    tasks.start_soon(_end_with_stdin, tasks.cancel_scope)
                async for _ in signals:
                    break
                tasks.cancel_scope.cancel()


def environment_of(endpoints: Endpoints) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_KINESIS": endpoints.kinesis_url,
        "AWS_ENDPOINT_URL_DYNAMODB": endpoints.dynamodb_url,
        "AWS_ENDPOINT_URL_DYNAMODB_STREAMS": endpoints.dynamodb_url,
        "AWS_ENDPOINT_URL_CLOUDWATCH": endpoints.cloudwatch_url,
        "AWS_ENDPOINT_URL_STS": endpoints.dynamodb_url,
        "AWS_ENDPOINT_URL_GLUE": endpoints.dynamodb_url,
        "AWS_ENDPOINT_URL_S3": endpoints.s3_url,
        "AWS_ENDPOINT_URL_SNS": endpoints.s3_url,
        "AWS_ENDPOINT_URL_SQS": endpoints.s3_url,
        **ACCESS,
    }


def endpoints_text(endpoints: Endpoints, form: Form) -> str:
    environment = environment_of(endpoints)
    if form == "json":
        urls = {
            "kinesis_url": endpoints.kinesis_url,
            "dynamodb_url": endpoints.dynamodb_url,
            "cloudwatch_url": endpoints.cloudwatch_url,
            "s3_url": endpoints.s3_url,
        }
        return orjson.dumps({**urls, "environment": environment}).decode()
    export = "export " if form == "shell" else ""
    return "\n".join(f"{export}{name}={value}" for name, value in environment.items())


def _create(streams: tuple[NewStream, ...], kinesis: KinesisModel) -> None:
    for name, shard_count in streams:
        naming = "StreamARN" if name.startswith("arn:") else "StreamName"
        try:
            kinesis.handle("CreateStream", {naming: name, "ShardCount": shard_count})
        except ServiceError as error:
            raise click.BadParameter(f"{name}: {error.message}", param_hint="--stream") from error


async def _end_with_stdin(scope: anyio.CancelScope) -> None:
    stdin = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(stdin)
        if not os.read(stdin, 65536):
            scope.cancel()
            return
