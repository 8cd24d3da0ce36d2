"""`python -m kcl_local`: both endpoints until a signal or the end of stdin. Knows only the server."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

import anyio
import click
import orjson

from kcl_local.kinesis.options import DEFAULTS, Limits, Options
from kcl_local.server import Endpoints, LocalOptions, local_endpoints


@dataclass(frozen=True, slots=True)
class _NewStream:
    name: str
    shard_count: int


def _new_stream(text: str) -> _NewStream:
    name, _, count = text.partition(":")
    if not name or (count and not (count.isascii() and count.isdigit() and int(count) > 0)):
        raise click.BadParameter(
            f"{text!r} is not a stream name, or a name and a shard count such as orders:4"
        )
    return _NewStream(name, int(count or 1))


@click.command()
@click.option("--kinesis-port", default=0, show_default="any free port", help="Port of Kinesis on 127.0.0.1.")
@click.option(
    "--dynamodb-port", default=0, show_default="any free port", help="Port of DynamoDB on 127.0.0.1."
)
@click.option(
    "--stream",
    "streams",
    multiple=True,
    type=_new_stream,
    metavar="NAME[:SHARDS]",
    help="Create this stream; repeatable.",
)
@click.option("--throttle", is_flag=True, help="Refuse reads above 5 a second and 2 MiB a second of a shard.")
@click.option(
    "--iterator-ttl-s", default=DEFAULTS.iterator_ttl_s, show_default=True, help="Life of iterators."
)
@click.option("--creating-s", default=0.0, show_default=True, help="How long a new stream is CREATING.")
@click.option("--until-eof", is_flag=True, help="Also end when stdin, a pipe or terminal, is closed.")
def main(
    *,
    kinesis_port: int,
    dynamodb_port: int,
    streams: tuple[_NewStream, ...],
    throttle: bool,
    iterator_ttl_s: float,
    creating_s: float,
    until_eof: bool,
) -> None:
    """Serve Kinesis and DynamoDB on loopback, in memory, until SIGINT or SIGTERM.

    The first line on stdout is JSON with the URLs and comes when both answer; the others are environment variables,
    NAME=value, that lead an AWS SDK there.
    """
    kinesis = Options(
        limits=Limits() if throttle else None, iterator_ttl_s=iterator_ttl_s, creating_s=creating_s
    )
    options = LocalOptions(kinesis=kinesis, kinesis_port=kinesis_port, dynamodb_port=dynamodb_port)
    try:
        anyio.run(_serve, options, streams, until_eof)
    except OSError as error:
        raise click.ClickException(f"cannot serve: {error}") from error


async def _serve(options: LocalOptions, streams: tuple[_NewStream, ...], until_eof: bool) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with local_endpoints(options) as endpoints, anyio.create_task_group() as tasks:
            for stream in streams:
                request = {"StreamName": stream.name, "ShardCount": stream.shard_count}
                endpoints.kinesis.handle("CreateStream", request)
            _announce(endpoints)
            if until_eof:
                tasks.start_soon(_end_with_stdin, tasks.cancel_scope)
            async for _ in signals:
                break
            tasks.cancel_scope.cancel()


def _announce(endpoints: Endpoints) -> None:
    urls = {"kinesis_url": endpoints.kinesis_url, "dynamodb_url": endpoints.dynamodb_url}
    click.echo(orjson.dumps(urls))
    for name, value in endpoints.environment().items():
        click.echo(f"{name}={value}")


async def _end_with_stdin(scope: anyio.CancelScope) -> None:
    stdin = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(stdin)
        if not os.read(stdin, 65536):
            scope.cancel()
            return


if __name__ == "__main__":
    main()
