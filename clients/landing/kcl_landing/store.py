"""Where a log is kept: the port, and what opens and probes a store. Paths are relative to its prefix, with `/`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

from kcl_landing.control import Refused

PROBES: Final = "_probe"
_PROBE_WRITERS: Final = 8
_ADVICE: Final = (
    "Two writers could both write one segment, so records would be lost. Use S3, a server that honours `If-None-Match: *`, "
    "HDFS, or a folder"
)
_FOLDER: Final = "folder_store", "FolderStore"
_S3: Final = "s3_store", "S3Store"
_ARROW: Final = "arrow_store", "ArrowStore"
# The others are pyarrow's.
_STORES: Final = {"": _FOLDER, "file": _FOLDER, "s3": _S3, "s3a": _S3, "s3n": _S3}
Cause = Literal["full", "denied", "unreachable", "slow down", "failed"]


class StoreTrouble(Exception):
    """Whether an object was written is unknown. Trying again may help."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class NoObject(Exception): ...


class NotConditional(Refused):
    """It cannot create an object only where there is none; says what to use instead."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StorePlace:
    """`encryption`, for S3: `AES256`, `aws:kms`, or the ARN of a KMS key."""

    uri: str
    endpoint: str = ""
    region: str = ""
    encryption: str | None = None


class LogStore(Protocol):
    """Thread-safe, blocking. Every method may raise StoreTrouble, within a minute.

    Readers see an object whole or not at all. The class has `at(place)`, which may raise Refused.
    """

    def create(self, path: str, content: bytes | memoryview) -> bool:
        """False: the path is taken, nothing was changed. Durable."""
        ...

    def replace(self, path: str, content: bytes) -> None: ...

    def read(self, path: str) -> bytes:
        """Raises NoObject."""
        ...

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """Everything below, by path; only paths greater than `after`."""
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """What is not there is no error."""
        ...


def open_store(uri: str, *, endpoint: str = "", region: str = "", encryption: str | None = None) -> LogStore:
    """Asks nothing. Raises Refused."""
    scheme = "" if uri.startswith("/") else urlsplit(uri).scheme
    if scheme in {"gs", "gcs"}:
        raise Refused(
            f"landing = {uri}: Google's store takes conditions only on an object's generation, which neither pyarrow "
            "nor the S3 interface has. Use s3://, hdfs:// or a folder"
        )
    module, name = _STORES.get(scheme, _ARROW)
    opened: LogStore = getattr(import_module(f"kcl_landing.{module}"), name).at(
        StorePlace(uri, endpoint, region, encryption)
    )
    return opened


def probe(store: LogStore) -> None:
    """Try whether it creates an object only where there is none. Raises NotConditional."""
    once, raced = (f"{PROBES}/{secrets.token_hex(8)}" for _ in range(2))
    try:
        _probe_in_turn(store, once)
        _probe_at_once(store, raced)
    finally:
        with suppress(StoreTrouble):
            store.remove([once, raced])


def _probe_in_turn(store: LogStore, path: str) -> None:
    store.create(path, b"first")
    if store.create(path, b"second"):
        raise NotConditional(f"the store created {path} a second time, over what was there. {_ADVICE}")
    _probe_content(store, path, {b"first"})


def _probe_at_once(store: LogStore, path: str) -> None:
    contents = [f"writer {index}".encode() for index in range(_PROBE_WRITERS)]
    with ThreadPoolExecutor(_PROBE_WRITERS) as writers:
        won = list(writers.map(partial(store.create, path), contents))
    winners = [content for content, is_winner in zip(contents, won, strict=True) if is_winner]
    if len(winners) > 1:
        raise NotConditional(
            f"the store let {len(winners)} of {_PROBE_WRITERS} writers create {path} at once. {_ADVICE}"
        )
    # None won: the answer was lost, the repeated request refused.
    _probe_content(store, path, set(winners or contents))


def _probe_content(store: LogStore, path: str, expected: set[bytes]) -> None:
    try:
        found = store.read(path)
    except NoObject:
        raise NotConditional(
            f"the store created {path}, and then it was not there to read. {_ADVICE}"
        ) from None
    if found not in expected:
        raise NotConditional(f"the store refused to write {path} again, but changed it. {_ADVICE}")
