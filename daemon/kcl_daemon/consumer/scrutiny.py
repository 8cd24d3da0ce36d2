"""Finds the record at which children fail, and sets it aside (no counterpart in KCL).

Owns what is remembered from one child of a lease to the next, and the carrying out; what follows from what is in
`failures.quarantine`. Records are decoded after a failure only, and only until what was set aside is checkpointed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.failure_settings import PoisonRecordPolicy
from kcl_daemon.consumer.checkpointer import Checkpointer
from kcl_daemon.consumer.dialogue import Dialogue
from kcl_daemon.consumer.interrupts import Call, Interrupts
from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.errors import AwsError, ChildError, ChildExited, DeadLetterNotStored, LeaseLost
from kcl_daemon.failures.letter import DeadLetter
from kcl_daemon.failures.quarantine import Delivery, Quarantine, Verdict
from kcl_daemon.ports import Log
from kcl_daemon.retrieval.batch import Batch
from kcl_daemon.retrieval.payload import Payload
from kcl_protocol.sequence import ExtendedSequenceNumber

_STORE_TRIES: Final = 5
_STORE_PAUSE_S: Final = 1.0
_STORE_TIMEOUT_S: Final = 30.0
# Sent from outside: by a person, or by the kernel where memory is short. A shell tells them as 128 + number.
_SIGNALS_FROM_OUTSIDE: Final = frozenset({1, 2, 9, 15})
_BY_SHELL: Final = 128


@dataclass(frozen=True, slots=True)
class Finding:
    """What a failure has led to.

    Args:
        progressed: the child got further than any before it.
        closer: the cause is among fewer records than before.
    """

    progressed: bool = False
    closer: bool = False


class Scrutiny:
    """Of one lease, over all its children.

    Args:
        parts: settings and ports.
        held: the lease.
        interrupts: end a wait for the place of dead letters.
        log: of the shard.
    """

    def __init__(self, *, parts: ConsumerParts, held: HeldLease, interrupts: Interrupts, log: Log) -> None:
        self._parts = parts
        self._held = held
        self._interrupts = interrupts
        self._log = log
        self._settings = parts.settings.failures
        self._state = Quarantine()
        self._done = self._furthest = self._furthest_before = held.lease.checkpoint
        self._under_way: Delivery | None = None
        self._lone: Payload | None = None

    def begin(self) -> None:
        """A new child starts from the lease's checkpoint."""
        self._done = self._held.lease.checkpoint
        self._furthest_before = self._furthest = max(self._furthest, self._done)
        self._state = self._state.checkpointed(self._done)
        self._under_way, self._lone = None, None

    async def deliver(
        self, batch: Batch, dialogue: Dialogue, checkpointer: Checkpointer, *, may_go_on: Callable[[], bool]
    ) -> None:
        """Have the child process a batch, in parts while somebody is suspected.

        Args:
            batch: with one record at least; the caller releases it.
            dialogue: with the child; its errors pass.
            checkpointer: is told how far the child may checkpoint.
            may_go_on: asked between two parts; False: what is left of the batch is not delivered any more.
        """
        if self._state.suspects is None and self._state.set_aside:
            self._state = self._state.checkpointed(self._held.lease.checkpoint)
        assert batch.last is not None, "there is a record"
        if self._state.is_clear:
            delivery = Delivery(self._done, batch.last, batch.count)
            await self._hand_over(batch, delivery, dialogue, checkpointer)
            return
        payload, behind_ms = Payload.of_line(batch.take_line())
        records = payload.records
        positions = [record.position for record in records]
        begin = 0
        while begin < len(records) and may_go_on():
            step = self._state.next(positions[begin:])
            end = begin + step.skip + step.take
            if step.take:
                part = Payload(records[begin:end], payload.size_bytes)
                delivery = Delivery(self._done, positions[end - 1], step.take, alone=step.take == 1)
                self._lone = part if delivery.alone else None
                await self._hand_over(
                    Batch(part, behind_ms, arrived_s=batch.arrived_s), delivery, dialogue, checkpointer
                )
            else:
                # All before it is done, and it has been dealt with: a checkpoint of everything covers it.
                self._done = positions[end - 1]
                checkpointer.delivering(self._done)
            begin = end

    async def _hand_over(
        self, batch: Batch, delivery: Delivery, dialogue: Dialogue, checkpointer: Checkpointer
    ) -> None:
        if dialogue.silent:
            raise await dialogue.exited("idle")  # it has not seen these records

        def on_its_way() -> None:  # what fails before says nothing of these records
            self._under_way = delivery
            checkpointer.delivering(delivery.last)

        progress, data_bytes = self._held.progress, batch.data_bytes
        progress.works("processRecords", arrived_s=batch.arrived_s)
        checkpointer.takes_up()
        await dialogue.deliver(batch, on_its_way=on_its_way)
        progress.done(delivery.last, delivery.count, data_bytes)
        self._under_way = None
        self._state = self._state.delivered(delivery)
        self._done = delivery.last
        self._furthest = max(self._furthest, self._done)

    async def judge(self, error: ChildError, *, refused: bool, stderr: tuple[str, ...]) -> Finding:
        """After a child failed; may set a record aside, which takes as long as storing it does.

        Args:
            error: how.
            refused: a checkpoint of its last action was refused, which may be what it failed at.
            stderr: its last lines.
        """
        progressed = self._furthest > self._furthest_before
        delivery, self._under_way = self._under_way, None
        if delivery is None or refused or _is_from_outside(error):
            return Finding(progressed)
        self._state, verdict = self._state.failed(delivery, tries=self._settings.poison_tries)
        if verdict is Verdict.GUILTY and self._lone is not None:
            await self._set_aside(self._lone, delivery.after, error, stderr)
        self._log.info(
            "poison_record_search",
            records=delivery.count,
            after=str(delivery.after),
            last=str(delivery.last),
            verdict=verdict.name.lower(),
        )
        return Finding(progressed, closer=verdict is Verdict.NARROWED)

    async def _set_aside(
        self, lone: Payload, after: ExtendedSequenceNumber, error: ChildError, stderr: tuple[str, ...]
    ) -> None:
        letter = self._letter(lone, error, stderr)
        facts = {
            "sequence_number": letter.record.sequence_number,
            "sub_sequence_number": letter.record.sub_sequence_number,
            "failures": letter.failures,
            "error": letter.error,
        }
        if self._settings.poison is PoisonRecordPolicy.SKIP:
            self._log.error(
                "record_skipped",
                **facts,
                advice="no child can process it, and poisonRecordPolicy=SKIP skips it; read it in the stream "
                "before its retention ends, and fix the processor",
            )
        elif await self._is_stored(letter):
            self._log.error(
                "record_set_aside",
                **facts,
                destination=str(self._settings.dead_letters),
                advice="no child can process it; it is stored there with the last stderr lines of the child. "
                "Fix the processor, then process it from there",
            )
        else:
            return
        self._state = self._state.put_aside(lone.last)
        self._held.progress.moved()  # the shard has got past it, whatever comes next
        await self._checkpoint(after, lone.last)

    def _letter(self, lone: Payload, error: ChildError, stderr: tuple[str, ...]) -> DeadLetter:
        parts, lease = self._parts, self._held.lease
        stream = parts.streams.of(lease).ref
        suspects = self._state.suspects
        return DeadLetter(
            record=lone.decoded()[0],
            application_name=parts.settings.application_name,
            stream_name=stream.name,
            stream_arn=stream.arn,
            shard_id=lease.shard_id,
            worker_id=parts.settings.worker_id,
            set_aside_ms=parts.clock.wall_ms(),
            failures=0 if suspects is None else suspects.failures,
            error=str(error),
            stderr=stderr,
        )

    async def _is_stored(self, letter: DeadLetter) -> bool:
        """Whether it is safe now; False as well where we are called away first."""
        stored: bool | None = None
        while stored is None and self._interrupts.call is Call.NONE:  # the child's end has stirred us
            stored = await self._interrupts.interruptible(lambda: self._store(letter))
        return bool(stored)

    async def _store(self, letter: DeadLetter) -> bool:
        """Whether it is safe now; a few tries. Where it is not, the record is delivered again."""
        assert self._parts.dead_letters is not None, "a policy that stores has a place for it"
        reason = ""
        for attempt in range(_STORE_TRIES):
            if attempt:
                await self._parts.clock.sleep(_STORE_PAUSE_S * 2 ** (attempt - 1))
            try:
                with self._parts.clock.move_on_after(_STORE_TIMEOUT_S):
                    await self._parts.dead_letters.store(letter)
                    return True
                reason = f"no answer within {_STORE_TIMEOUT_S:g} s"
            except (AwsError, DeadLetterNotStored) as error:
                reason = str(error)
            self._log.warning("dead_letter_failed", error=reason, attempt=attempt + 1)
        self._log.error(
            "dead_letter_not_stored",
            error=reason,
            destination=str(self._settings.dead_letters),
            sequence_number=letter.record.sequence_number,
            advice="the shard waits at this record until it can be stored: check permissions, free space and "
            "size limits of the destination; deadLetterDestination = file:PATH accepts records of any "
            "size",
        )
        return False

    async def _checkpoint(self, after: ExtendedSequenceNumber, position: ExtendedSequenceNumber) -> None:
        """Where everything before it is checkpointed, so may it be: else the next worker would find it anew."""
        if self._held.lost is not None or self._held.lease.checkpoint < after:
            return
        try:
            await self._parts.keeper.checkpoint(self._held, position)
        except (AwsError, LeaseLost) as error:
            # Nothing depends on it: it is passed over all the same, and the child's next checkpoint covers it.
            self._log.debug("set_aside_not_checkpointed", error=str(error))


def _is_from_outside(error: ChildError) -> bool:
    """Whether a child was ended by somebody, which says nothing of what it was doing."""
    if not isinstance(error, ChildExited) or error.status is None:
        return False
    number = -error.status if error.status < 0 else error.status - _BY_SHELL
    return number in _SIGNALS_FROM_OUTSIDE
