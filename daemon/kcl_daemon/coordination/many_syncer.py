"""Keeps the leases of many streams complete while this worker leads: each stream by itself (KCL: Scheduler).

Owns one `Syncer` for each stream that is there. A stream in trouble does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import anyio

from kcl_daemon.coordination.former_streams import FormerStreamsCleaner
from kcl_daemon.coordination.many_streams import LeasesByStream, ManyStreams, by_stream
from kcl_daemon.coordination.streams import Stream
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Log, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters

_AT_ONCE: Final = 8
# The rest follows at the next look, a second or a few later.
_NOTED_AT_A_LOOK: Final = 200


class ManySyncer:
    """As a `Syncer`, of all streams.

    Args:
        table: the lease table.
        streams: which there are.
        syncer_of: makes that of one.
        former: deletes the leases of those that are no more.
        log: of what goes wrong, with the stream.
    """

    def __init__(
        self,
        *,
        table: Table,
        streams: ManyStreams,
        syncer_of: Callable[[Stream], Syncer],
        former: FormerStreamsCleaner,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._table = table
        self._streams = streams
        self._syncer_of = syncer_of
        self._former = former
        self._log = log
        self._syncers: dict[StreamIdentity, Syncer] = {}

    def begin(self) -> None:
        """Leadership begins: look at once, trust nothing remembered."""
        self._syncers.clear()
        self._former.begin()
        self._streams.forget_look()

    async def ensure(self, leases: Sequence[Lease]) -> bool:
        """Make the leases of every stream complete, where it is time to look; never raises for AWS.

        Args:
            leases: all there are, as just read.

        Returns:
            whether leases were created.
        """
        found = by_stream(leases)
        await self._streams.refresh(found)
        self._keep_current()
        self._meters.add(kcl.STREAMS_ACTIVE, len(self._syncers))
        await self._note_creation(found)
        created = await self._ensure_all(found)
        await self._former.clean(found)
        return created

    async def _note_creation(self, leases: LeasesByStream) -> None:
        """Note in leases when their stream was created, where nobody has: what a later leader goes by.

        Java programs and older versions make leases without it. Never raises for AWS: the next look goes on.
        """
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def note(lease: Lease, created_s: int) -> None:
            """One lease."""
            async with limiter:
                with suppress(AwsError):
                    await self._table.update(lease_row.stream_creation_of(lease, created_s))

        async with anyio.create_task_group() as writes:
            for lease, created_s in islice(self._unnoted(leases), _NOTED_AT_A_LOOK):
                writes.start_soon(note, lease, created_s)

    def _unnoted(self, leases: LeasesByStream) -> Iterator[tuple[Lease, int]]:
        for identity in self._syncers:
            created_s = self._streams.creation_s(identity)
            for lease in leases.get(identity, ()):
                if lease.stream_created_s is None and created_s is not None:
                    yield lease, created_s

    def _keep_current(self) -> None:
        """A syncer for each stream that is there now, as it was where there was one."""
        before = self._syncers
        self._syncers = {}
        for stream in self._streams.current:
            identity = stream.ref.identity
            assert identity is not None, "one of many streams has an identity"
            syncer = before.get(identity)
            if syncer is None:
                syncer = self._syncer_of(stream)
                syncer.begin()
            self._syncers[identity] = syncer

    async def _ensure_all(self, leases: LeasesByStream) -> bool:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        created = False

        async def ensure(identity: StreamIdentity, syncer: Syncer) -> None:
            """One stream."""
            nonlocal created
            async with limiter:
                try:
                    created = await syncer.ensure(leases.get(identity, ())) or created
                except AwsError as error:
                    tell = self._log.error if isinstance(error, AccessDenied) else self._log.warning
                    tell("lease_sync_failed", stream=str(identity), error=str(error))

        async with anyio.create_task_group() as looks:
            for identity, syncer in self._syncers.items():
                looks.start_soon(ensure, identity, syncer)
        return created
