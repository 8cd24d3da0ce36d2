"""The loop that measures this worker's CPU (KCL: WorkerMetricStatsManager)."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from kcl_daemon.cpu.figures import CpuRecorder
from kcl_daemon.errors import CpuUnreadable
from kcl_daemon.metrics.kcl import CAPTURE_FAILED
from kcl_daemon.ports import NO_METERS, Clock, Cpu, Log, Meters, Randomness

_CAPTURE_S: Final = 1.0
_MAX_CAPTURE_S: Final = 5.0
_ADVICE: Final = (
    "a worker whose CPU measurement fails gets no new leases; set disableWorkerMetrics=true to balance it "
    "by throughput"
)


class CpuSampler:
    """Captures a sample each second and averages them for each report.

    `capture_s` is KCL's inMemoryWorkerMetricsCaptureFrequencyMillis. Only the first failure is logged.
    """

    def __init__(
        self,
        *,
        cpu: Cpu,
        clock: Clock,
        randomness: Randomness,
        log: Log,
        capture_s: float = _CAPTURE_S,
        max_averages: int = 10,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._cpu = cpu
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._capture_s = capture_s
        self._recorder = CpuRecorder(max_averages)
        self._failures = 0

    @property
    def failures(self) -> int:
        return self._failures

    async def run(self) -> None:
        """Capture for ever. The random start spreads the workers."""
        await self._clock.sleep(self._randomness.uniform(0, self._capture_s))
        while True:
            await self.capture()
            await self._clock.sleep(self._capture_s)

    async def capture(self) -> None:
        """Take one sample. Never raises: a missing figure must not end a worker."""
        percent, problem = None, f"no answer within {_MAX_CAPTURE_S:g} s"
        try:
            with self._clock.move_on_after(_MAX_CAPTURE_S):
                percent, problem = await self._cpu.sample(), ""
        except CpuUnreadable as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - any fault of a source counts as a failed capture
            problem = repr(error)
        self._recorder.add(percent)
        if problem:
            self._failed(problem)

    def averages(self) -> tuple[Decimal, ...]:
        """End the window; the averages, oldest first. Empty: there is no metric."""
        self._recorder.drain()
        return self._recorder.averages

    def _failed(self, problem: str) -> None:
        self._failures += 1
        self._meters.add(CAPTURE_FAILED)
        if self._failures == 1:
            self._log.warning("cpu_capture_failed", source=self._cpu.name, error=problem, advice=_ADVICE)
