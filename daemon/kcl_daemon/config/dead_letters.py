from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager as Opened
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self

from kcl_daemon.config.kinds import Form, InvalidValue, ValueKind, trimmed
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import LettersUnusable
from kcl_daemon.ports import DeadLetters
from kcl_daemon.records.dead_letter import DeadLetter

if TYPE_CHECKING:
    from kcl_daemon.records.letters import LetterSource, StoredLetter

Fetch = Callable[[str, Callable[[int], None]], Awaitable[bytes]]
"""Of an address; the size is checked first."""
WithData = Callable[["StoredLetter"], Awaitable[DeadLetter]]
MakeArn = Callable[[str, str, str | None, str | None], str]
"""Of service, rest, region (None: the stream's) and account (None: the daemon's)."""
Right = tuple[str, str, tuple[str, ...], str]
"""End of its name, service, actions, resource."""
OVERFLOW_FORM: Final = "s3://BUCKET/PREFIX"
_OWN: Final = {
    "file": ("FileLetters", "file:PATH"),
    "sqs": ("QueueLetters", "sqs:QUEUE_URL"),
    "kinesis": ("StreamLetters", "kinesis:STREAM, kinesis:STREAM_ARN"),
    "sns": ("TopicLetters", "sns:TOPIC_ARN"),
    "s3": ("BucketLetters", f"{OVERFLOW_FORM}, with ?folders=day for a folder a day"),
}
*_FORMS, _LAST_FORM = (form for _, form in _OWN.values())
ALLOWED: Final = f"{', '.join(_FORMS)} or {_LAST_FORM}"
_GROUP: Final = "kcl_daemon.dead_letters"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+-]{0,30}")
_INVALID: Final = "not a valid destination"


class KeepsData(DeadLetters, Protocol):
    async def keep(self, dead_letter: DeadLetter) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class Destination(ABC):
    """`SCHEME:ADDRESS` of a property. docs/extending.md says what each part must do."""

    address: str
    scheme: ClassVar[str]
    limit: ClassVar[tuple[str, str] | None] = None  # the largest letter and record
    unreadable: ClassVar[str] = ""  # why, and what to do instead
    undeletable: ClassVar[tuple[str, str] | None] = None  # why, and what becomes of letters

    def __str__(self) -> str:
        return f"{self.scheme}:{self.address}"

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(text)

    @property
    def path(self) -> Path | None:
        return None

    @abstractmethod
    def writer(self, endpoints: Endpoints, overflow: Overflow | None) -> Opened[DeadLetters]:
        """`overflow` is for what is too large. ConfigurationError if it can never take a letter."""

    def reader(self, endpoints: Endpoints, with_data: WithData) -> Opened[LetterSource]:
        del endpoints, with_data
        raise LettersUnusable(self.unreadable or f"{self}: its package cannot read letters back")

    def rights(self, arn: MakeArn, *, reads: bool) -> Sequence[Right]:
        del arn, reads
        return ()

    def largest_letter(self, endpoints: Endpoints) -> float | None:
        """In bytes; None: it is not asked. Blocks. AwsError if it is not there."""
        del endpoints
        return None


class Overflow(Destination):
    @abstractmethod
    def writer(self, endpoints: Endpoints, overflow: Overflow | None) -> Opened[KeepsData]: ...

    @abstractmethod
    def fetcher(self, endpoints: Endpoints) -> Opened[Fetch]: ...

    @abstractmethod
    def holds(self, data_at: str) -> bool: ...


@cache
def _kind(scheme: str) -> type[Destination] | None:
    if scheme in _OWN:
        module = import_module(f"kcl_daemon.destinations.{scheme}")
        found: type[Destination] = getattr(module, _OWN[scheme][0])
        return found
    return _of_package(scheme) if _SCHEME.fullmatch(scheme) else None


def _of_package(scheme: str) -> type[Destination] | None:
    from importlib.metadata import entry_points

    points = {each.dist and each.dist.name: each for each in entry_points(group=_GROUP, name=scheme)}
    if len(points) > 1:
        packages = " and ".join(sorted(map(str, points)))
        raise InvalidValue(f"{packages} both have a destination {scheme}; uninstall one")
    for package, point in points.items():
        what = f"the destination {scheme} of the package {package}, {point.value}, cannot be used"
        try:
            found = point.load()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise InvalidValue(f"{what}: {why}; reinstall or upgrade that package") from error
        if not (isinstance(found, type) and issubclass(found, Destination) and found.scheme == scheme):
            raise InvalidValue(f"{what}: it is no Destination with the scheme {scheme}; ask who made it")
        return found
    return None


def destination_of(text: str) -> Destination | None:
    scheme, _, rest = text.partition(":")
    kind = _kind(scheme)
    if kind is None:
        return None
    if not rest:
        raise InvalidValue(_INVALID)
    try:
        return kind.read(rest)
    except ValueError as error:
        raise InvalidValue(str(error)) from error


def file_at(path: str) -> Destination:
    kind = _kind("file")
    assert kind is not None, "it is ours"
    return kind(path)


def _read(text: str) -> Destination:
    found = destination_of(trimmed(text))
    if found is None:
        scheme, colon, _ = trimmed(text).partition(":")
        raise InvalidValue(f"{_INVALID}{f', and no installed package has {scheme!r:.40}' if colon else ''}")
    return found


def _read_overflow(text: str) -> Overflow:
    found = destination_of(trimmed(text)) if trimmed(text).startswith("s3:") else None
    if not isinstance(found, Overflow):
        raise InvalidValue("not an S3 bucket")
    return found


DESTINATION: Final = ValueKind(_read, ALLOWED, form=Form(rf"{_SCHEME.pattern}:[\s\S]+"))
OVERFLOW: Final = ValueKind(_read_overflow, _LAST_FORM, form=Form(r"s3:[\s\S]+"))
