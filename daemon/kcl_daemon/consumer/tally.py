"""What one child is told and does, timed and counted (KCL: the metrics of InitializeTask, ProcessTask, ShutdownTask)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcl_daemon.coordination.renewals import lease_labels
from kcl_daemon.leases.lease import Lease
from kcl_daemon.metrics import kcl_shards as told
from kcl_daemon.metrics.metric import Operation
from kcl_daemon.ports import Clock
from kcl_daemon.ports_metrics import Meters
from kcl_daemon.retrieval.batch import Batch
from kcl_protocol.messages import Action, Initialize, LeaseLost, ShardEnded, Shutdown

_OPERATIONS: Final[Mapping[str, Operation]] = {
    Initialize.action: told.INITIALIZE_CHILD,
    LeaseLost.action: told.SHUTDOWN_CHILD,
    ShardEnded.action: told.SHUTDOWN_CHILD,
    Shutdown.action: told.SHUTDOWN_CHILD,
}


class Tally:
    """One for each child."""

    def __init__(self, meters: Meters, clock: Clock, lease: Lease) -> None:
        self._meters = meters
        self._clock = clock
        self._labels = lease_labels(lease)
        self._began_s = 0.0

    def begin(self) -> None:
        """An action is given to the child."""
        self._began_s = self._clock.monotonic()

    def performed(self, action: Action) -> None:
        """It has done an action that is no batch."""
        operation = _OPERATIONS.get(action.action)
        if operation is not None:
            self._meters.done(operation, self._clock.monotonic() - self._began_s)

    def processed(self, batch: Batch) -> None:
        """It has done a batch."""
        meters, labels = self._meters, self._labels
        seconds = self._clock.monotonic() - self._began_s
        meters.add(told.PROCESS_RECORDS, batch.count, **labels)
        meters.add(told.PROCESS_BYTES, batch.data_bytes, **labels)
        meters.done(told.PROCESS, seconds, **labels)
        meters.done(told.PROCESS_CHILD, seconds, **labels)

    def failed(self) -> None:
        """It has failed in a batch."""
        self._meters.done(told.PROCESS, self._clock.monotonic() - self._began_s, False, **self._labels)
