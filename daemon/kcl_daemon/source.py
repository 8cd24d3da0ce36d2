"""What is read, and the words for it: a source is one class in one file, which is loaded where a stream is of it.

The scheme of a stream's address says which: that of an ARN is its service, a stream without one is of Kinesis. Another
package can add a source; docs/extending.md says what each part must do.
"""

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
    """What a source is opened with; the rest is for those of AWS. `clock` has the services' time of day."""

    settings: Settings
    clock: Clock
    log: Log | None
    clients: Clients
    kinesis: AwsJsonClient
    scan: ScanPort | None
    on_date: Callable[[float], None] | None


class Source(ABC):
    """One object for all its streams. What is not said is as with Kinesis."""

    scheme: ClassVar[str]
    # Who grants what is read, as whose calls they are counted, and the property with its endpoint (None: no service).
    service: ClassVar[str] = "kinesis"
    metered_as: ClassVar[str] = "kinesis"
    endpoint: ClassVar[str | None] = "kinesis"
    describes: ClassVar[str] = "DescribeStreamSummary"
    lists: ClassVar[str] = "ListShards"
    # Whether an empty answer means the tip, bytes are limited, and how exact arrivals are.
    says_tip: ClassVar[bool] = True
    limits_bytes: ClassVar[bool] = True
    arrival_step_ms: ClassVar[int] = 0
    # Whether a shard stops when records were lost, and one name can mean another stream later.
    stops_at_loss: ClassVar[bool] = False
    is_replaceable: ClassVar[bool] = True
    # Whether shards have ranges of hash keys, and there is fan-out, or tables that are scanned first.
    has_hash_keys: ClassVar[bool] = True
    has_fan_out: ClassVar[bool] = True
    has_tables: ClassVar[bool] = False

    @abstractmethod
    def opened(self, opening: Opening) -> Opened[Kinesis]: ...

    def gone(self, stream: StreamRef) -> str:
        """Why it may be gone, and what to do."""
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

    def rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        """To read those of its streams that the settings name."""
        del settings, arn
        yield from ()

    def peek_rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        """As `rights`, for `capacity`, which looks whether there is something to read."""
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
    scheme = "dynamodb" if table is not None else arn.split(":")[2] if arn is not None else "kinesis"
    return source_named(scheme)
