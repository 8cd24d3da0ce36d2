"""`--local`: the endpoints that run already, or new ones that end with this command, and a stream on them."""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import click
import orjson

from kcl_daemon.cli.commands import need_extra
from kcl_daemon.wings import LOCAL
from kcl_local import place

_CALL_S: Final = 30.0
_LOOK_EVERY_S: Final = 1.0
_KINESIS: Final = "AWS_ENDPOINT_URL_KINESIS"


class LocalEndpoints:
    """`environment` waits until they answer."""

    def __init__(
        self, found: dict[str, str] | None, process: subprocess.Popen[bytes] | None, told: str = ""
    ) -> None:
        """`told`: address and process of endpoints that somebody else has started."""
        self.told = told
        self._found = found
        self._process = process
        self.are_ours = process is not None

    def environment(self) -> dict[str, str]:
        """Raises click.ClickException if they cannot be started; they have said why."""
        if self._found is None:
            assert self._process is not None, "either found or started"
            assert self._process.stdout is not None, "it is a pipe"
            line = self._process.stdout.readline()
            if not line:
                raise click.ClickException("the local endpoints did not start")
            environment: dict[str, str] = orjson.loads(line)["environment"]
            self._found = environment
        return self._found


@contextmanager
def local_endpoints() -> Generator[LocalEndpoints]:
    """Ours end when the block ends, and when this process does, however that is."""
    found = place.find()
    if found is not None:
        with _ended_with(found, f"{found[_KINESIS]}, process {place.pid()}") as told:
            yield LocalEndpoints(found, None, told)
        return
    need_extra("run --local", "local", LOCAL)
    command = [sys.executable, "-m", "kcl_local", "--until-eof", "--format", "json"]
    with tempfile.TemporaryFile() as said:  # no pipe: nobody would read it
        process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the daemon, which needs its tables until its end
        )
        try:
            with process:  # its end closes the pipes, and waits
                yield LocalEndpoints(None, process)
        finally:
            if process.returncode:
                said.seek(0)
                click.echo(said.read().decode(errors="replace"), nl=False, err=True)


@contextmanager
def _ended_with(found: dict[str, str], told: str) -> Generator[str]:
    """Stop this process when they have ended: what it reads or stores is gone."""
    over, have_ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_EVERY_S):
            if not place.answers(found) and not over.wait(_LOOK_EVERY_S) and not place.answers(found):
                have_ended.set()
                advice = "start this again: --local starts its own where none run"
                click.echo(f"the local endpoints at {told}, have ended; {advice}", err=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, daemon=True, name="local-endpoints")
    watcher.start()
    try:
        yield told
    except SystemExit as wish:
        raise SystemExit(wish.code or int(have_ended.is_set())) from None
    finally:
        over.set()


def make_stream(endpoints: dict[str, str], stream: str, shards: int) -> bool:
    """False: there is one of this name already. Raises click.ClickException."""
    address = urlsplit(endpoints[_KINESIS])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_CALL_S)
    headers = {"X-Amz-Target": "Kinesis_20131202.CreateStream", "Content-Type": "application/x-amz-json-1.1"}
    try:
        connection.request("POST", "/", orjson.dumps({"StreamName": stream, "ShardCount": shards}), headers)
        answer = connection.getresponse()
        body = answer.read()
    except OSError as error:
        raise click.ClickException(f"the local endpoints do not answer: {error}") from None
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.OK:
        return True
    if b"ResourceInUse" in body:
        return False
    raise click.ClickException(f"the stream {stream} cannot be made: {body.decode(errors='replace')}")


def use_local(endpoints: LocalEndpoints, stream: str, shards: int | None, example: str) -> None:
    """Lead this process there, make the stream, and say how a record is put."""
    environment = endpoints.environment()
    place.lead(os.environ, environment)
    is_new = make_stream(environment, stream, shards or 1)
    if endpoints.are_ours:
        click.echo("local endpoints started; they and their records end with this command", err=True)
    else:
        click.echo(f"on the local endpoints that run already: {endpoints.told}", err=True)
    if shards is not None and not is_new:
        click.echo(f"the stream {stream} exists; --shards has no effect", err=True)
    put = f"echo {shlex.quote(example)} | kcl-daemon put {stream} --local"
    click.echo(f"put a record: {put}", err=True)
