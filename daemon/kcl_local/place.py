"""The file that says where this user's local endpoints are. Standard library only: it is read without the extra."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

_FILE: Final = "local.json"
_KINESIS: Final = "AWS_ENDPOINT_URL_KINESIS"
_CONNECT_S: Final = 1.0
# SDKs ask these before the keys of the environment, or go elsewhere.
_NOT_LOCAL: Final = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "kcl-daemon"
    return Path(tempfile.gettempdir()) / f"kcl-daemon-{os.getuid()}"


@contextmanager
def announced(environment: Mapping[str, str]) -> Generator[None]:
    """Others find these endpoints meanwhile; the newest ones win. OSError: the folder cannot be made or is not ours."""
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
        raise PermissionError(f"{folder} can be changed by other users; remove it")
    path = folder / _FILE
    text = orjson.dumps({"pid": os.getpid(), "environment": dict(environment)})
    new = folder / f"{_FILE}.{os.getpid()}"
    new.write_bytes(text)
    new.replace(path)
    try:
        yield
    finally:
        if _content_of(path) == text:
            path.unlink(missing_ok=True)


def find() -> dict[str, str] | None:
    """None: no endpoints answer."""
    folder = _folder()
    text = _content_of(folder / _FILE)
    if not text or not _is_ours(folder):
        return None
    environment: dict[str, str] = orjson.loads(text)["environment"]
    return environment if answers(environment) else None  # ended by SIGKILL, which left its file


def pid() -> int:
    return int(orjson.loads(_content_of(_folder() / _FILE) or "{}").get("pid", 0))


def answers(endpoints: Mapping[str, str]) -> bool:
    address = urlsplit(endpoints[_KINESIS])
    try:
        socket.create_connection((address.hostname or "", address.port or 0), _CONNECT_S).close()
    except OSError:
        return False
    return True


def lead(environment: MutableMapping[str, str], endpoints: Mapping[str, str]) -> None:
    """Whoever has this environment uses nothing of a person's AWS account."""
    for name in _NOT_LOCAL:
        environment.pop(name, None)
    environment.update(endpoints)


def _content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_ours(folder: Path) -> bool:
    """Nobody else may lead this user's commands to other endpoints."""
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
