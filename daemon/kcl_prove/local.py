from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import orjson

from kcl_local.demo.processes import Processes
from kcl_prove.parts import ProveError

_PREFIX: Final = "AWS_ENDPOINT_URL_"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_NEEDED: Final = frozenset({"kinesis", "dynamodb"})
_EXTRA: Final = ("aiohttp", "flask", "flask_cors", "moto")


def endpoints_named(environment: Mapping[str, str]) -> dict[str, str]:
    """Empty unless Kinesis and DynamoDB are there, on loopback."""
    found = {
        name.removeprefix(_PREFIX).lower(): url
        for name, url in environment.items()
        if name.startswith(_PREFIX) and urlsplit(url).hostname in _LOOPBACK
    }
    return found if found.keys() >= _NEEDED else {}


@asynccontextmanager
async def local_endpoints(
    folder: Path, environment: Mapping[str, str] = os.environ
) -> AsyncGenerator[Mapping[str, str]]:
    """Those that the environment names, or a process of our own: DemoError, in a group, if it ends meanwhile."""
    given = endpoints_named(environment)
    if given:
        yield given
        return
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise ProveError(
            f'--local needs packages that are not installed ({", ".join(missing)}): pip install "kcl-daemon[local]"'
        )
    async with Processes().endpoints(folder) as (running, _), anyio.create_task_group() as tasks:
        tasks.start_soon(running.fail_when_ended)
        reported = orjson.loads((folder / "endpoints.json").read_bytes().partition(b"\n")[0])
        yield endpoints_named(reported["environment"])
        tasks.cancel_scope.cancel()
