"""Tells CloudWatch, now and then, what has come together (KCL: CloudWatchPublisherRunnable).

Owns the pace and what is said of failures. KCL does not wait for the end of the buffer time once 200 sets have come
together; here they come together in the same sets for all of it, which is as good for figures of a minute, and a part of the
calls. What could not be told is lost, as in KCL: figures must never pile up, and nothing that matters waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio

from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.metrics.ours import TOLD_LOST
from kcl_daemon.metrics.statistics import StatisticSets
from kcl_daemon.ports import Clock, Log
from kcl_daemon.ports_metrics import CloudWatch, Meters, Statistic

BATCH_MOST: Final = 500
"""Sets in one call, of the 1,000 and the MB that CloudWatch takes. KCL sends 20; each call costs the same."""
CALL_S: Final = 5.0
"""How long a call may take (KCL: CloudWatchMetricsPublisher)."""

# However much comes together, flushes are this far apart; KCL's would follow one another without a pause.
_LEAST_PAUSE_S: Final = 1.0
_FAREWELL_S: Final = 5.0


class Publisher:
    """The loop that empties the queue.

    Args:
        statistics: the queue.
        cloudwatch: where to.
        namespace: of all figures.
        buffer_s: how long figures are gathered, unless half the queue is full before.
        meters: told what was lost.
        clock: for pauses and time-outs.
        log: told of the first failure in a row, and of its end.
    """

    def __init__(
        self,
        statistics: StatisticSets,
        *,
        cloudwatch: CloudWatch,
        namespace: str,
        buffer_s: float,
        meters: Meters,
        clock: Clock,
        log: Log,
    ) -> None:
        self._statistics = statistics
        self._cloudwatch = cloudwatch
        self._namespace = namespace
        self._buffer_s = buffer_s
        self._meters = meters
        self._clock = clock
        self._log = log
        self._many = anyio.Event()
        self._telling = anyio.Lock()
        self._is_over = False
        self._failures = 0
        statistics.on_many = self.hurry

    def hurry(self) -> None:
        """So much has come together that it should be told soon."""
        self._many.set()

    async def run(self) -> None:
        """Tell in each period, or when hurried; until the farewell."""
        least_s = min(_LEAST_PAUSE_S, self._buffer_s)
        while True:
            await self._clock.sleep(least_s)
            with self._clock.move_on_after(self._buffer_s - least_s):
                await self._many.wait()
            self._many = anyio.Event()
            if self._is_over:
                return
            await self.flush()

    async def farewell(self) -> None:
        """Tell the rest at the end of the worker, also under cancellation; a few seconds at most.

        To be called while `run` is still under way: a call that it has begun is waited for, in these same seconds.
        """
        self._is_over = True
        with self._clock.move_on_after(_FAREWELL_S) as scope:
            scope.shield = True
            await self.flush()

    async def flush(self) -> None:
        """Tell all that waits, after a flush that is under way; never raises for AWS."""
        async with self._telling:
            await self._flush()

    async def _flush(self) -> None:
        dropped, self._statistics.dropped = self._statistics.dropped, 0
        if dropped:
            self._meters.add(TOLD_LOST, dropped)
            self._log.warning(
                "metrics_dropped",
                count=dropped,
                advice="more metrics than metricsMaxQueueSize; raise it, or send fewer with metricsLevel or "
                "metricsEnabledDimensions",
            )
        left = self._statistics.waiting  # what comes together meanwhile is for the next flush
        while batch := self._statistics.take(min(BATCH_MOST, left)):
            left -= len(batch)
            await self._tell(batch)

    async def _tell(self, batch: Sequence[Statistic]) -> None:
        try:
            with self._clock.move_on_after(CALL_S):
                await self._cloudwatch.put(self._namespace, batch)
                self._told()
                return
            raise Unavailable(f"no answer within {CALL_S:g} s", operation="PutMetricData")
        except AwsError as error:
            self._failed(error, len(batch))

    def _told(self) -> None:
        if self._failures:
            self._log.info("metrics_sent_again", failures=self._failures)
        self._failures = 0

    def _failed(self, error: AwsError, count: int) -> None:
        self._failures += 1
        self._meters.add(TOLD_LOST, count)
        tell = self._log.warning if self._failures == 1 else self._log.debug
        tell(
            "metrics_not_sent",
            error=str(error),
            count=count,
            advice="grant cloudwatch:PutMetricData, or set metricsLevel=NONE; these metrics are lost, records "
            "are still processed",
        )
