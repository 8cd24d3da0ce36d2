from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kcl_daemon.aws.session import Clients, open_clients
from kcl_daemon.cli.common import NotChanged, settings_of
from kcl_daemon.config.kinds import InvalidValue, endpoint, stream_arn
from kcl_daemon.config.services import REGION, CredentialsProvider, CredentialsSource
from kcl_daemon.config.settings import DEFAULTS, Settings
from kcl_daemon.errors import StreamNotFound
from kcl_daemon.ports import StreamRef
from kcl_daemon.system import SystemClock
from kcl_local.place import find, lead

_T = TypeVar("_T")
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_NO_ENDPOINTS: Final = (
    "no local endpoints of yours answer; start them with `kcl-daemon local --stream NAME` in another terminal"
)
CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class StreamPlace:
    settings: Settings
    ref: StreamRef
    is_local: bool


@asynccontextmanager
async def open_place(place: StreamPlace) -> AsyncGenerator[Clients, None]:
    async with open_clients(place.settings.endpoints, changes=place.ref.source.has_tables) as clients:
        try:
            yield clients
        except* StreamNotFound as missing:
            raise NotChanged(_missing(place, clients)) from missing


def _missing(place: StreamPlace, clients: Clients) -> str:
    name = place.ref.arn or place.ref.name
    if place.is_local:
        return (
            f"the local endpoints have no stream {name}; start them with `kcl-daemon local --stream {name}`"
        )
    return (
        f"there is no stream {name} in {clients.kinesis.meta.region_name}; check its name, --region, and the account of "
        "the credentials (--profile)"
    )


def with_place(command: Callable[..., object]) -> Callable[..., object]:
    @wraps(command)
    def called(
        *,
        stream: str,
        region: str | None,
        profile: str | None,
        endpoint_url: str | None,
        local: bool,
        properties: Path | None,
        **others: object,
    ) -> object:
        if local:
            if region or profile or endpoint_url or properties:
                raise click.UsageError("--local needs no --region, --profile, --endpoint-url or --properties")
            use_local()
        settings = DEFAULTS if properties is None else settings_of(None, properties)
        chosen = _place(settings, stream, region, profile, endpoint_url, is_local=local)
        return command(place=chosen, **others)

    options = (
        click.argument("stream", metavar="STREAM"),
        click.option("--local", is_flag=True, help="A stream of `kcl-daemon local` or `run --local`."),
        click.option("--region", metavar="NAME", help="Default: of the ARN, AWS_REGION, or the profile."),
        click.option("--profile", metavar="NAME", help="A profile of ~/.aws/config, with its credentials."),
        click.option("--endpoint-url", metavar="URL", help="Where Kinesis is. Default: AWS."),
        click.option(
            "-p",
            "--properties",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Region, endpoints and credentials of an application.",
        ),
    )
    for option in reversed(options):
        called = option(called)
    return called


def use_local() -> None:
    """For this process; ClickException if none answer."""
    found = find()
    if found is None:
        raise click.ClickException(_NO_ENDPOINTS)
    lead(os.environ, found)


def _place(
    settings: Settings,
    stream: str,
    region: str | None,
    profile: str | None,
    endpoint_url: str | None,
    *,
    is_local: bool,
) -> StreamPlace:
    ref, arn_region = _stream_of(stream)
    endpoints = settings.endpoints
    if profile is not None:
        os.environ["AWS_PROFILE"] = profile  # also for its region
        own = (CredentialsProvider(CredentialsSource.PROFILE, profile),)
        endpoints = replace(endpoints, credentials=replace(endpoints.credentials, kinesis=own))
    if region is not None or arn_region is not None:
        name = _read(REGION.read, region or arn_region or "", "--region")
        endpoints = replace(
            endpoints, region_name=name, of_kinesis=replace(endpoints.of_kinesis, region_name=None)
        )
    if endpoint_url is not None:
        url = _read(endpoint().read, endpoint_url, "--endpoint-url")
        given: dict[str, Any] = {ref.source.endpoint: url}
        endpoints = replace(endpoints, **given)
    return StreamPlace(replace(settings, endpoints=endpoints), ref, is_local)


def _stream_of(text: str) -> tuple[StreamRef, str | None]:
    if text.startswith("arn:"):
        arn = _read(stream_arn().read, text, "STREAM")
        return StreamRef(arn.stream_name, arn.arn), arn.region_name
    if not _NAME.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is neither the name of a stream nor an ARN; a name has 1 to 128 letters, digits, dots, dashes and "
            "underscores",
            param_hint="STREAM",
        )
    return StreamRef(text), None


def _read(read: Callable[[str], _T], text: str, what: str) -> _T:
    try:
        return read(text)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{text!r}: {wrong}", param_hint=what) from None
