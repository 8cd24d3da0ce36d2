"""Checkpoints on a timer for a plain processor, also while no batch comes."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic  # noqa: TID251 - the client has no ports
from typing import Final

from kcl_client._processor import Checkpointer, PlainRuntime, RecordProcessor, request_for
from kcl_client._session import Session, SessionOptions
from kcl_protocol.conversation import State
from kcl_protocol.errors import CheckpointShutdown
from kcl_protocol.messages import Action, CheckpointAnswer, RejectAnswer
from kcl_protocol.sequence import ExtendedSequenceNumber

CHECKPOINT_EVERY_S: Final = 10.0


class Timer:
    """`position`: to be stored at `due_s`, by `clock`; None: nothing has moved."""

    def __init__(self, every_s: float, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.due_s = clock() + every_s
        self.position: ExtendedSequenceNumber | None = None
        self._every_s = every_s

    def left_s(self) -> float | None:
        return None if self.position is None else max(self.due_s - self.clock(), 0.0)

    def stored(self) -> None:
        self.position = None
        self.later()

    def later(self) -> None:
        self.due_s = self.clock() + self._every_s


class TimedProcessor(RecordProcessor):
    def __init__(self, timer: Timer) -> None:
        self.timer = timer


class TimedSession(Session[Checkpointer]):
    """Asks for the checkpoint that is due while the daemon says nothing. The next action may come before its answer."""

    def __init__(
        self,
        processor: TimedProcessor,
        runtime: PlainRuntime,
        has_input_within: Callable[[float], bool],
        options: SessionOptions,
    ) -> None:
        super().__init__(processor, Checkpointer, runtime, options)
        self._timer = processor.timer
        self._has_input_within = has_input_within
        self._is_asked = False

    async def _next_action(self) -> Action:
        action: Action | None = None
        while action is None or self._is_asked:
            message = await self._receive()
            assert not isinstance(message, RejectAnswer), "all are answered within their batch"
            if isinstance(message, CheckpointAnswer):
                self._take_answer(message)
            else:
                action = message
        return action

    async def _read(self) -> bytes:
        left_s = self._timer.left_s()
        may_ask = left_s is not None and self._side.state is State.IDLE and not self._lease_gone
        if left_s is not None and may_ask and not self._has_input_within(left_s):
            self._is_asked = True
            self._send(request_for(self._timer.position))
        return await super()._read()

    def _take_answer(self, answer: CheckpointAnswer) -> None:
        """A refusal is no failure: what is wrong for good is refused again after the next batch."""
        self._is_asked = False
        if answer.error is None:
            self._timer.stored()
            return
        self._lease_gone |= answer.error == CheckpointShutdown.wire_name
        self._timer.later()


def input_within(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])
