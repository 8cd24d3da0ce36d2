"""Deletes the leases of streams that are read no more (leader only; KCL: FormerStreamsLeasesDeletionStrategy).

Owns since when a stream has been a former one. Whoever holds such a lease loses it at its next renewal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kcl_daemon.config.stream_settings import FormerStreams, StreamsSettings
from kcl_daemon.coordination.many_streams import ManyStreams
from kcl_daemon.coordination.stream_watch import StreamState
from kcl_daemon.errors import AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters


class FormerStreamsCleaner:
    """One for a leader."""

    def __init__(
        self,
        *,
        table: Table,
        streams: ManyStreams,
        settings: StreamsSettings,
        clock: Clock,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._table = table
        self._streams = streams
        self._settings = settings
        self._clock = clock
        self._log = log
        self._since_s: dict[StreamIdentity, float] = {}

    def begin(self) -> None:
        """Leadership begins: whoever led before may have had another list, so that all waits begin anew."""
        self._since_s.clear()

    async def clean(self, leases: Mapping[StreamIdentity, Sequence[Lease]]) -> None:
        """Delete what is to go. Never raises for AWS: the next look goes on.

        Args:
            leases: all there are, by stream.
        """
        now_s = self._clock.monotonic()
        former = [identity for identity in leases if self._is_former(identity)]
        self._since_s = {identity: self._since_s.get(identity, now_s) for identity in former}
        self._meters.add(kcl.STREAMS_PENDING, len(former))
        for identity in leases:
            try:
                reason = await self._reason(identity)
                if reason is not None:
                    await self._delete(identity, leases[identity], reason)
            except AwsError as error:
                self._log.info("former_stream_not_cleaned", stream=str(identity), error=str(error))

    def _is_former(self, identity: StreamIdentity) -> bool:
        """Whether it is listed no more, or its name is another's now.

        While nobody knows what the filter names, it may be one of those.
        """
        if not self._streams.is_list_known:
            return False
        return self._streams.listing(identity) is None or self._streams.successor(identity) is not None

    async def _reason(self, identity: StreamIdentity) -> str | None:
        """Why the leases of a stream are deleted now; None: they are not."""
        since_s = self._since_s.get(identity)
        if since_s is None or not self._is_to_go(identity):
            return None
        successor = self._streams.successor(identity)
        if self._clock.monotonic() - since_s >= self._settings.former_wait_s:
            if successor is not None:
                return f"the stream was recreated; it is {successor} now"
            return "the stream is no longer listed"
        if successor is not None:
            return None
        gone = await self._streams.known(identity).watch.confirm() is StreamState.GONE
        if not gone:
            return None
        self._meters.add(kcl.STREAMS_NOT_FOUND)
        return "the stream is no longer listed, and Kinesis does not know it"

    def _is_to_go(self, identity: StreamIdentity) -> bool:
        match self._settings.former:
            case FormerStreams.KEEP:
                return False
            case FormerStreams.DELETE_ALL:
                return True
            case FormerStreams.DELETE_GIVEN:
                return identity in self._settings.former_given

    async def _delete(self, identity: StreamIdentity, leases: Sequence[Lease], reason: str) -> None:
        """Row by row; the first error leaves the rest to the next run."""
        count = 0
        try:
            for lease in leases:
                count += (await self._table.delete(lease.lease_key, lease_row.still_there(lease))).applied
            self._meters.add(kcl.STREAMS_DELETED)
        finally:
            if count:
                self._log.info(
                    "former_stream_leases_deleted", stream=str(identity), count=count, reason=reason
                )
