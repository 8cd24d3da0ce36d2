"""What is read, and the words for it: a source is one class in a file of `sources/`, loaded where a stream is of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager as Opened
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from kcl_daemon.aws.session import Clients
    from kcl_daemon.config.settings import Settings
    from kcl_daemon.ports import Clock, Kinesis, Log, ScanPort, StreamRef, StreamSummary
    from kcl_daemon.transport.caller import AwsJsonClient

MakeArn = Callable[[str, str], str]
"""Of service and rest."""
Right = tuple[str, str, tuple[str, ...], list[str]]
"""Its name, service, actions, resources."""


@dataclass(frozen=True, slots=True)
class Opening:
    """`clock` has the services' time of day. Without `scan` and `log` no segment of a snapshot can be read."""

    settings: Settings
    clock: Clock
    log: Log | None
    clients: Clients
    kinesis: AwsJsonClient
    scan: ScanPort | None
    on_date: Callable[[float], None] | None


class Source(ABC):
    """One object for all its streams. What is not said is as with Kinesis."""

    # Who grants what is read, as whose calls they are counted, and the field of its endpoint.
    service: ClassVar[str] = "kinesis"
    metered_as: ClassVar[str] = "kinesis"
    endpoint: ClassVar[str] = "kinesis"
    describes: ClassVar[str] = "DescribeStreamSummary"
    lists: ClassVar[str] = "ListShards"
    # Whether an empty answer means the tip, and bytes are limited; how exact arrivals are.
    says_tip: ClassVar[bool] = True
    limits_bytes: ClassVar[bool] = True
    arrival_step_ms: ClassVar[int] = 0
    # Whether a shard stops when records were lost, and one name can mean another stream later.
    stops_at_loss: ClassVar[bool] = False
    is_replaceable: ClassVar[bool] = True
    has_hash_keys: ClassVar[bool] = True
    has_fan_out: ClassVar[bool] = True
    has_tables: ClassVar[bool] = False

    @abstractmethod
    def opened(self, opening: Opening) -> Opened[Kinesis]: ...

    def gone(self, stream: StreamRef) -> str:
        """Why, and what to do."""
        del stream
        return (
            "the stream was deleted; stop this application, or create the stream again and reset its leases"
        )

    def arns(self, settings: Settings, arn: MakeArn) -> list[str]:
        """Of its streams, perhaps with `*`."""
        found = (each for each in settings.stream_refs if each.source is self)
        return [each.arn or arn(self.service, self.path(each)) for each in found]

    def path(self, stream: StreamRef) -> str:
        """Of a stream without ARN."""
        return f"stream/{stream.name}"

    @abstractmethod
    def rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        """To read those of its streams that the settings name."""

    def peek_rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        """To look whether there is something to read."""
        yield from self.rights(settings, arn)

    def findings(self, settings: Settings, summary: StreamSummary) -> Iterator[tuple[bool, str]]:
        """What `check --with-aws` says of a stream. It may block."""
        del settings
        yield summary.status in {"ACTIVE", "UPDATING"}, f"stream {summary.name}: {summary.status}"


_OWN: Final = {"kinesis": "KinesisStreams", "dynamodb": "TableStreams"}


@cache
def source_named(scheme: str) -> Source:
    source: Source = getattr(import_module(f"kcl_daemon.sources.{scheme}"), _OWN[scheme])()
    return source


@cache
def source_of(arn: str | None, table: str | None = None) -> Source:
    is_of_table = table is not None or (arn or "").split(":")[2:3] == ["dynamodb"]
    return source_named("dynamodb" if is_of_table else "kinesis")
