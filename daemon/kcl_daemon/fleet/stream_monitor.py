"""Whether a stream is there, and the same: only another creation time than the one in its leases says no."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import anyio

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, StreamSummary
from kcl_daemon.shards.lineage import leases_of_another

RECHECK_S: Final = 60.0
# All shards of a stream report "not found" at about the same time.
_FRESH_S: Final = 5.0


class StreamState(Enum):
    THERE = auto()
    GONE = auto()
    ANOTHER = auto()
    """The stream was deleted and created again."""


class StreamMonitor:
    """`created_s` None: the first answer counts. A stream of DynamoDB is never another one: its ARN has that time."""

    def __init__(
        self, *, kinesis: Kinesis, stream: StreamRef, clock: Clock, log: Log, created_s: int | None = None
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._clock = clock
        self._log = log
        self._created_s = created_s
        self._by_positions = False
        self._began_s: float | None = None
        self._polled_s: float | None = None
        self._looking = anyio.Lock()
        self.state = StreamState.THERE
        self.retention_s: float | None = None
        self.arn: str | None = None

    @property
    def created_s(self) -> int | None:
        return self._created_s

    async def poll(self) -> StreamState:
        """Or share an answer that was requested after this call; raises AwsError."""
        came_s = self._clock.monotonic()
        async with self._looking:
            if not self._is_active(came_s):
                began_s = self._clock.monotonic()
                self._become(await self._asked())
                self._began_s, self._polled_s = began_s, self._clock.monotonic()
        return self.state

    def _is_active(self, came_s: float) -> bool:
        if self._polled_s is None:
            return False
        if self.state is StreamState.THERE:
            return self._began_s is not None and self._began_s >= came_s
        return self._clock.monotonic() - self._polled_s < _FRESH_S

    async def confirm(self, within_s: float = RECHECK_S) -> StreamState:
        """Ask only if the state is older than `within_s`; raises as `poll` does."""
        polled_s = self._polled_s
        if polled_s is None or self._clock.monotonic() - polled_s >= within_s:
            return await self.poll()
        return self.state

    def recheck(self) -> None:
        self._polled_s = None

    def seen(self, summary: StreamSummary) -> None:
        self._become(self._judged(summary))
        self._polled_s = self._clock.monotonic()

    async def is_there(self) -> bool:
        return await self.poll() is StreamState.THERE

    async def has_forgotten(self, lease: Lease) -> bool:
        """The stream may have had it; raises AwsError."""
        if not self._stream.source.is_replaceable:
            return True
        shards = await self._kinesis.list_shards(self._stream)
        for _, why in leases_of_another([lease], shards):
            self.is_replacement(why)
            return False
        return all(shard.shard_id != lease.shard_id for shard in shards)

    async def _asked(self) -> StreamState:
        try:
            summary = await self._kinesis.describe_stream(self._stream)
        except StreamNotFound:
            return StreamState.GONE
        return self._judged(summary)

    def _judged(self, summary: StreamSummary) -> StreamState:
        self.retention_s = summary.retention_s or self.retention_s
        self.arn = summary.arn
        if summary.status == "DELETING":
            return StreamState.GONE
        if not self._stream.source.is_replaceable:
            return StreamState.THERE
        created_s = int(summary.creation_time_s)
        if self._created_s is None:
            self._created_s = created_s
        if self._created_s != created_s:
            self._by_positions = False
            return StreamState.ANOTHER
        # A replaced stream stays replaced: its leases belong to the old one.
        return StreamState.ANOTHER if self.state is StreamState.ANOTHER else StreamState.THERE

    def _become(self, state: StreamState) -> None:
        before, self.state = self.state, state
        if state is before:
            return
        match state:
            case StreamState.THERE:
                self._log.info("stream_found_again", stream=self._stream.name)
            case StreamState.GONE:
                log_stream_deleted(self._log, self._stream)
            case StreamState.ANOTHER:
                log_stream_replaced(self._log, self._stream, why="its creation time has changed")

    def is_replacement(self, why: str) -> None:
        if self.state is not StreamState.ANOTHER:
            self.state, self._by_positions = StreamState.ANOTHER, True
            log_stream_replaced(self._log, self._stream, why=why)

    def positions_match(self) -> None:
        if self.state is StreamState.ANOTHER and self._by_positions:
            self._by_positions = False
            self._become(StreamState.THERE)

    def was_created(self, created_s: int) -> None:
        if self._created_s is None or created_s > self._created_s:
            self._created_s = created_s


def log_stream_deleted(log: Log, stream: StreamRef) -> None:
    if stream.identity is not None:
        advice = "its leases wait; when it is no longer listed, formerStreamsLeasesDeletionStrategy applies"
        log.warning("stream_gone", stream=str(stream.identity), advice=advice)
        return
    log.error(
        "stream_gone",
        stream=stream.name,
        advice=f"{stream.source.gone(stream)}. The daemon checks again from time to time and writes nothing until then",
    )


def log_stream_replaced(log: Log, stream: StreamRef, *, why: str) -> None:
    if stream.identity is not None:
        log.warning(
            "stream_recreated",
            stream=str(stream.identity),
            why=why,
            advice="the new stream has its own leases, from its initial position; the former ones are no "
            "longer read, and deleted according to formerStreamsLeasesDeletionStrategy",
        )
        return
    log.error(
        "stream_recreated",
        stream=stream.name,
        why=why,
        advice="the leases belong to a former stream of this name: stop the application, delete its lease "
        "table or start over with `kcl-daemon leases reset`, then start it again. Nothing is created or "
        "deleted until then",
    )
