"""Runs a handler written for AWS Lambda, unchanged: `python3 -m kcl_client.aws_lambda app.handler`.

`LambdaProcessor` is for tests with `kcl_client.testing`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kcl_client._processor import (
    Batch,
    Checkpointer,
    ItemFailures,
    Record,
    RecordProcessor,
    Redelivery,
    ShardStart,
    failed_records,
)
from kcl_client.aws_lambda._events import (
    QUIET_MS,
    WINDOW_MOST_S,
    Event,
    Source,
    Window,
    event_of,
    runs_of,
    state_of,
    windowed,
)
from kcl_client.aws_lambda._runtime import (
    Handler,
    LambdaContext,
    begin_invocation,
    check_answer,
    monotonic_s,
    now_ms,
    sleep_s,
)

__all__ = ["Event", "Handler", "LambdaContext", "LambdaProcessor"]

TIMEOUT_S: Final = 900.0


class LambdaProcessor(RecordProcessor):
    """One invocation for each batch, and a checkpoint after it; with windows, after each window.

    Args:
        handler: `handler(event, context)`.
        function_name: in `context` and in ARNs.
        stream_arn: None: what the daemon says (`KCL_STREAM_ARN`).
        timeout_s: what `context.get_remaining_time_in_millis()` begins with.
        tumbling_window_s: length of a window, up to 900; 0: no windows.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        function_name: str = "function",
        stream_arn: str | None = None,
        timeout_s: float = TIMEOUT_S,
        tumbling_window_s: int = 0,
        item_failures: ItemFailures = RecordProcessor.item_failures,
        now: Callable[[], int] = now_ms,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        if not 0 <= tumbling_window_s <= WINDOW_MOST_S:
            raise ValueError(f"a tumbling window has 1 to {WINDOW_MOST_S} seconds: {tumbling_window_s}")
        if not timeout_s > 0:
            raise ValueError(f"a timeout must be above 0: {timeout_s}")
        self._handler = handler
        self._function_name = function_name
        self._stream_arn = stream_arn
        self._timeout_s = timeout_s
        self._window_s = tumbling_window_s
        self._now, self._clock = now, clock
        self.item_failures = item_failures
        self._redelivery = Redelivery(item_failures)
        self._source = Source.of({}, function_name, stream_arn)
        self._shard_id = ""
        self._window: Window | None = None
        self._state: Event = {}
        self._last: Record | None = None  # of the open window
        self._not_before_s = 0
        self._over_since_ms: int | None = None

    def initialize(self, start: ShardStart) -> None:
        self._shard_id = start.shard_id
        self._source = Source.of(os.environ, self._function_name, self._stream_arn)

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Mapping[str, object] | None:
        if self._window_s:
            self._in_windows(batch, checkpointer)
        elif batch.records:
            result = self._invoke(self._event(batch.records))
            if isinstance(result, Mapping) and failed_records(result, batch) is not None:
                return result  # the client delivers again, rejects and checkpoints
            checkpointer.checkpoint()
        return None

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self._close(checkpointer)

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """What is done is checkpointed; an open window comes again, from its first record."""

    def _event(self, records: Sequence[Record]) -> Event:
        return event_of(records, self._source, self._shard_id, self._now())

    def _invoke(self, event: Event) -> object:
        context = LambdaContext(self._source, self._timeout_s, self._clock)
        begin_invocation(context)
        return check_answer(self._handler(event, context))

    def _in_windows(self, batch: Batch, checkpointer: Checkpointer) -> None:
        now = self._now()
        for window, records in runs_of(batch.records, self._window_s, self._not_before_s, now):
            if window != self._window:
                self._close(checkpointer)
                self._window, self._not_before_s = window, window.start_s
            self._aggregate(window, batch.only(records), checkpointer)
        if batch.records:
            self._over_since_ms = None
        else:
            self._rest(now, batch.millis_behind_latest, checkpointer)

    def _rest(self, now: int, behind_ms: int | None, checkpointer: Checkpointer) -> None:
        """Only after QUIET_MS: an empty batch may have waited in the daemon, with records behind it."""
        if self._window is None or not self._window.is_over(now, behind_ms):
            self._over_since_ms = None
        elif self._over_since_ms is None:
            self._over_since_ms = now
        elif now - self._over_since_ms >= QUIET_MS:
            self._close(checkpointer)

    def _aggregate(self, window: Window, part: Batch, checkpointer: Checkpointer) -> None:
        """The state of an answer that names failures holds what comes before them."""
        while part:
            self._window = window
            result = self._invoke(self._windowed(window, part.records))
            self._state, is_too_large = state_of(result)
            left = self._redelivery.after(failed_records(result, part) or (), part)
            left.reject(part)
            if left.rejected:
                checkpointer.wait_for_letters()
            self._last = (left.done if left.again else part.records[-1]) or self._last
            if is_too_large:
                self._close(checkpointer, is_early=True)
            if left.pause_s:
                sleep_s(left.pause_s)
            part = left.again

    def _close(self, checkpointer: Checkpointer, *, is_early: bool = False) -> None:
        """The only place where a window's records are checkpointed: its state is nowhere but here."""
        if self._window is None or self._last is None:
            return
        result = self._invoke(self._windowed(self._window, (), is_final=True, is_early=is_early))
        failed_records(result, Batch(()))  # raises for any name: there are no records
        checkpointer.checkpoint(self._last)
        self._not_before_s = self._window.start_s if is_early else self._window.end_s
        self._window, self._state, self._last = None, {}, None

    def _windowed(
        self, window: Window, records: Sequence[Record], *, is_final: bool = False, is_early: bool = False
    ) -> Event:
        return windowed(
            self._event(records),
            window,
            self._state,
            source=self._source,
            shard_id=self._shard_id,
            is_final=is_final,
            is_early=is_early,
        )
