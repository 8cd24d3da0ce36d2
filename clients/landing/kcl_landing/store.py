"""Where a log is kept. Paths are relative to its prefix, with `/`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kcl_landing.control import Refused

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
