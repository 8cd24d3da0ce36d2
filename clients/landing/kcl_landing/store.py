"""The port to where a log is kept. Paths are relative to its prefix, with `/`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kcl_landing.control import Refused

Cause = Literal["full", "denied", "unreachable", "slow down", "failed"]


class StoreTrouble(Exception):
    """Raised when the store fails; whether an object was written is unknown. Trying again may help."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class NoObject(Exception): ...


class NotConditional(Refused):
    """Raised when a store cannot create an object only where there is none; says what to use instead."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A folder or a URI. The rest is for S3; `encryption`: `AES256`, `aws:kms`, or the ARN of a KMS key."""

    uri: str
    endpoint: str = ""
    region: str = ""
    encryption: str | None = None


class LogStore(Protocol):
    """Thread-safe, blocking. Every method may raise StoreTrouble, within a minute.

    Readers see an object whole or not at all. The class of a store has `at(place)`, which may raise Refused.
    """

    def create(self, path: str, content: bytes | memoryview) -> bool:
        """False if the path is taken; then nothing was changed. Durable on return."""
        ...

    def replace(self, path: str, content: bytes) -> None: ...

    def read(self, path: str) -> bytes:
        """Raises NoObject."""
        ...

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """Everything below a folder, by path; with `after` only greater paths."""
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """What is not there is no error."""
        ...
