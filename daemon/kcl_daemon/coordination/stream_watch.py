"""Whether the stream is there, and still the one it was: asked for all shards at once, told once.

Owns what is known of the stream itself. Knows nothing of leases; whoever is told that a shard was not found asks here
what that means.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import anyio

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, StreamSummary

# A stream that is gone may come back, but nobody waits for it by the second.
RECHECK_S: Final = 60.0
# All shards of a stream are told at about the same time that they were not found.
_FRESH_S: Final = 5.0


class StreamState(Enum):
    """What is known of the stream."""

    THERE = auto()
    GONE = auto()
    ANOTHER = auto()
    """The name is that of another stream by now: it was deleted and created again."""


class StreamWatch:
    """One for a stream and a worker.

    Args:
        kinesis: tells of it.
        stream: how it is called.
        clock: for the age of what is known.
        log: what changes is told once.
        created_s: when it was created, where somebody has noted it; None: what Kinesis tells first counts. The epoch
            in a lease's key counts for nothing here: Java programs write what they like there.
    """

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
        self._looked_s: float | None = None
        self._looking = anyio.Lock()
        self.state = StreamState.THERE

    @property
    def created_s(self) -> int | None:
        """When the stream that its leases are of was created; None: Kinesis has not been asked."""
        return self._created_s

    async def look(self) -> StreamState:
        """What the stream is like now; what another caller has just learnt serves as well.

        Raises:
            AwsError: Kinesis did not tell.
        """
        came_s = self._clock.monotonic()
        async with self._looking:
            if not self._serves(came_s):
                began_s = self._clock.monotonic()
                self._become(await self._asked())
                self._began_s, self._looked_s = began_s, self._clock.monotonic()
        return self.state

    def _serves(self, came_s: float) -> bool:
        """Whether the last look serves somebody who came at this time, perhaps because something was not found.

        That the stream was there before proves nothing then: it may have been deleted since.
        """
        if self._looked_s is None:
            return False
        if self.state is StreamState.THERE:
            return self._began_s is not None and self._began_s >= came_s
        return self._clock.monotonic() - self._looked_s < _FRESH_S

    async def confirm(self, within_s: float = RECHECK_S) -> StreamState:
        """What the stream is like, as of so many seconds ago at most. The same errors as `look`."""
        looked_s = self._looked_s
        if looked_s is None or self._clock.monotonic() - looked_s >= within_s:
            return await self.look()
        return self.state

    def doubt(self) -> None:
        """The stream is not listed any more: whoever asks next has it looked at."""
        self._looked_s = None

    def seen(self, summary: StreamSummary) -> None:
        """Somebody has just asked Kinesis."""
        self._become(self._judged(summary))
        self._looked_s = self._clock.monotonic()

    async def is_there(self) -> bool:
        """Whether the stream is there and the one it was. The same errors as `look`."""
        return await self.look() is StreamState.THERE

    async def _asked(self) -> StreamState:
        try:
            summary = await self._kinesis.describe_stream(self._stream)
        except StreamNotFound:
            return StreamState.GONE
        return self._judged(summary)

    def _judged(self, summary: StreamSummary) -> StreamState:
        if summary.status == "DELETING":
            return StreamState.GONE
        created_s = int(summary.creation_time_s)  # what two calls tell may differ in fractions
        if self._created_s is None:
            self._created_s = created_s
        if self._created_s != created_s:
            self._by_positions = False
            return StreamState.ANOTHER
        # Another one stays another one: its leases are not put right by time.
        return StreamState.ANOTHER if self.state is StreamState.ANOTHER else StreamState.THERE

    def _become(self, state: StreamState) -> None:
        before, self.state = self.state, state
        if state is before:
            return
        match state:
            case StreamState.THERE:
                self._log.info("stream_found_again", stream=self._stream.name)
            case StreamState.GONE:
                tell_of_gone(self._log, self._stream)
            case StreamState.ANOTHER:
                tell_of_another(self._log, self._stream, why="its creation time has changed")

    def is_another(self, why: str) -> None:
        """Somebody has found out from positions that the stream is another one."""
        if self.state is not StreamState.ANOTHER:
            self.state, self._by_positions = StreamState.ANOTHER, True
            tell_of_another(self._log, self._stream, why=why)

    def positions_fit(self) -> None:
        """The leases are of the stream after all, or have been put right by hand since; a creation time still counts."""
        if self.state is StreamState.ANOTHER and self._by_positions:
            self._by_positions = False
            self._become(StreamState.THERE)

    def was_created(self, created_s: int) -> None:
        """Somebody has noted when the stream was created; of two times the later one counts."""
        if self._created_s is None or created_s > self._created_s:
            self._created_s = created_s


def tell_of_gone(log: Log, stream: StreamRef) -> None:
    """Say that a stream was deleted, and what to do."""
    if stream.identity is not None:  # whether somebody must act, the leader tells by its list
        advice = "its leases wait; when it is no longer listed, formerStreamsLeasesDeletionStrategy applies"
        log.warning("stream_gone", stream=str(stream.identity), advice=advice)
        return
    log.error(
        "stream_gone",
        stream=stream.name,
        advice="the stream was deleted; stop this application, or create the stream again and reset its "
        "leases. The daemon checks again from time to time and writes nothing until then",
    )


def tell_of_another(log: Log, stream: StreamRef, *, why: str) -> None:
    """Say that a stream was created again under its name, and what to do."""
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
