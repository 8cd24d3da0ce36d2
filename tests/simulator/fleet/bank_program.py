"""A child that carries out transfers: `kcl_client.once` over a database that is a network away.

Owns when its requests reach the database, which may be after its own death. Knows nothing of the rules (`bank`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from kcl_client import Record as ClientRecord
from kcl_client.once import Cursor, Once, Stopped
from kcl_protocol.messages import Action, DaemonMessage, Initialize, Record, Status
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.faults.behaviour import Mischief
from tests.simulator.fleet.program import Exit, Program, Script, Step, Wait
from tests.simulator.loop import current_loop

_EXIT_STOPPED: Final = 1
_WAYS_S: Final = ((0.0005, 0.005), (0.0005, 0.005), (0.01, 0.5), (0.5, 8.0))

# How often a process with mischief ends while its request is on its way.
_DIES: Final = 0.03

Position = ExtendedSequenceNumber | None
Answer = Position | Stopped


class BankProgram(Program):
    """One child's script."""

    _once: Once[Cursor]
    _begun: Position = None

    def _act(self, message: Action, mischief: Mischief | None) -> Script:
        match message:
            case Initialize():
                yield from self._begin()
            case _:
                yield from super()._act(message, mischief)

    def _begin(self) -> Script:
        bank, child, token = self._children_plan.bank, self._identity, self._identity.token
        assert bank is not None
        assert token is not None
        self._once = Once(bank.store(), bank.reader(child.shard_id, token), lambda _seconds: None)

        def begin() -> Position:
            position = self._once.begin()
            bank.began(child.shard_id, token, str(child))
            return position

        self._begun = yield from self._at_database(begin)
        if self._begun is not None:
            self._deliveries.begins_at(child, self._begun)

    def _write_output(self, records: Sequence[Record]) -> Script:
        bank, child, token = self._children_plan.bank, self._identity, self._identity.token
        assert bank is not None
        assert token is not None
        if not records:
            return
        if self._is_refused:
            raise Exit(_EXIT_STOPPED)

        bank.about_to_write(child.worker_id, child.shard_id, self._chance)
        yield Wait(self._chance.uniform(0.0, 0.01))

        def carry_out() -> Position:
            before = self._once.position
            position = self._once.process(
                [ClientRecord(record) for record in records], partial(bank.carry_out, child.shard_id)
            )
            if position != before:
                bank.wrote(child.shard_id, token, str(child))
            return position

        yield from self._at_database(carry_out)

    def _at_database(self, call: Callable[[], Position]) -> Generator[Step, DaemonMessage | None, Position]:
        """A request and its answer. It arrives also where this process is stopped or dead by then."""
        answers: list[Answer] = []

        def arrive() -> None:
            try:
                answers.append(call())
            except Stopped as stopped:
                answers.append(stopped)

        # In calm the database is quick: a slow one could not keep up with the stream.
        ways_s = _WAYS_S if self._children_plan.mischief else _WAYS_S[:2]
        there_s, back_s = (self._chance.uniform(*self._chance.pick(ways_s)) for _ in range(2))
        current_loop().after(there_s, arrive)
        if self._children_plan.mischief and self._chance.happens(_DIES):
            yield Wait(self._chance.uniform(0.0, there_s))
            raise Exit(_EXIT_STOPPED)
        yield Wait(there_s + back_s)
        answer = answers[0]
        if isinstance(answer, Stopped):
            raise Exit(_EXIT_STOPPED)
        return answer

    def _status(self, message: Action) -> Status:
        status = super()._status(message)
        if self._begun is None or not isinstance(message, Initialize):
            return status
        number, sub_number = self._begun.sequence_number, self._begun.sub_sequence_number
        return Status(
            status.response_for, status.frames, sequence_number=number, sub_sequence_number=sub_number
        )
