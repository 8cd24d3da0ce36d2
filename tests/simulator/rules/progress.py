"""The rules of being told: no shard stands still without a cause that is true and, past its limit, without an event.

Owns, for each lease that a worker of ours holds, since when it should have got on. Takes the worker's word only for the
cause; whether the shard gets on, and whether the cause can be true, it knows from the stream, the children and the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.progress.progress import ActiveLease, WaitReason
from kcl_daemon.progress.watchdog import Watchdog, stall_limit_s, stall_status
from kcl_daemon.records.lane_window import LaneWindow
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.clock import SimClock
from tests.simulator.faults.life import Life
from tests.simulator.loop import current_loop, now
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.rules.rows import LeaseTableRules
from tests.simulator.rules.truth import Position, ShardTruth, Truth
from tests.simulator.trace import Trace, named_lane
from tests.simulator.violation import report

LOOK_S: Final = 2.0
# The worker knows of a batch when it is done, we when it is given; and it looks every two seconds.
_SLACK_S: Final = 15.0
# After a pause the watchdog waits a minute before it judges again.
_AFTER_PAUSE_S: Final = 65.0
# A question that is not answered is asked again, several times at worst.
# No limit is shorter, and nobody takes longer than this to do what he was given.
LEAST_S: Final = 4.0
# Where it waits for one after the other, each time not for too long, and its children fail.
_ALL_IN_TURN_S: Final = 150.0
_UNNOTICED_S: Final = 60.0


class Looked(Protocol):
    """A worker, as far as it is looked at."""

    @property
    def worker_id(self) -> str:
        """Its name."""
        ...

    @property
    def life(self) -> Life:
        """Whether it is paused."""
        ...

    @property
    def clock(self) -> SimClock:
        """As it sees the time."""
        ...

    @property
    def watchdog(self) -> Watchdog | None:
        """None where it is none of ours, or has not begun to work."""
        ...


@dataclass(slots=True)
class _Standing:
    """A lease that does not get on.

    Args:
        watched: under which it is held; another one begins anew.
        state: what would have changed if it had got on.
        since_s: virtual time since when.
        cause: what it last said.
        cause_since_s: since when it says so.
        failures: of its children, when it last said so.
        parents_finished_s: since when it has no parents to wait for; None: it has.
    """

    watched: ActiveLease
    state: tuple[object, ...]
    since_s: float
    cause: WaitReason
    cause_since_s: float
    failures: int
    parents_finished_s: float | None = None


class ProgressRules:
    """Looks at every worker of ours now and then.

    Args:
        workers: those that live.
        may_be_held: whether a worker may hold a shard back because an operator wants it.
    """

    def __init__(
        self,
        *,
        truth: Truth,
        rules: LeaseTableRules,
        deliveries: Deliveries,
        trace: Trace,
        workers: Callable[[], Sequence[Looked]],
        may_be_held: Callable[[str], bool],
    ) -> None:
        self._truth = truth
        self._rules = rules
        self._deliveries = deliveries
        self._trace = trace
        self._workers = workers
        self._may_be_held = may_be_held
        self._standing: dict[tuple[str, str], _Standing] = {}
        self._excused_until_s: dict[str, float] = {}
        self._polled_s = 0.0

    def begin(self) -> None:
        """Look from now on, to the end of the run."""
        self.poll()
        current_loop().after(LOOK_S, self.begin)

    def poll(self) -> None:
        """Report whatever stands still silently, or with a cause that cannot be."""
        self._judge_words()
        before, self._standing = self._standing, {}
        for worker in self._workers():
            if worker.life.is_paused:
                self._excused_until_s[worker.worker_id] = now() + _AFTER_PAUSE_S
            watchdog = worker.watchdog
            if watchdog is None or now() < self._excused_until_s.get(worker.worker_id, 0.0):
                continue
            for watched in watchdog.active_leases.shards:
                if watched.lost is None:
                    self._poll_row(worker, watchdog, watched, before.get((worker.worker_id, watched.key)))

    def _poll_row(
        self, worker: Looked, watchdog: Watchdog, watched: ActiveLease, before: _Standing | None
    ) -> None:
        shard = self._truth.shards.get(watched.key)
        stored = self._rules.checkpoint_of(watched.key)
        if shard is None or shard.gone_s is not None or shard.is_stopped or not self._has_work(shard, stored):
            return
        if self._rules.was_forgotten(watched.key):
            return  # somebody deleted the row; the worker is about to find out
        seen = stall_status(watched.progress, watchdog.limits, worker.clock.monotonic())
        # A shard that waits for a lane waits for what that lane waits for.
        lane = named_lane(seen.detail) if seen.cause is WaitReason.LANE else None
        slow = None if lane is None else watched.progress.lanes.get(lane)
        who = watched.progress if slow is None else slow.progress
        reached = self._deliveries.reached.get((worker.worker_id, watched.key))
        # What a lane did not checkpoint may come again one by one, where its shard keeps little for it.
        batches = reached.batches[slow.progress.lane] if reached and slow else 0
        cause = stall_status(who, watchdog.limits, worker.clock.monotonic()).cause
        state = (reached and reached.state, batches, stored, shard.is_closed, self._child_leases(shard))
        if before is None or before.watched is not watched or before.state != state:
            if before is None or before.watched is not watched:
                # It is read anew from its checkpoint: that counts again.
                self._deliveries.reached.pop((worker.worker_id, watched.key), None)
                state = (None, batches, stored, shard.is_closed, self._child_leases(shard))
            standing = _Standing(watched, state, now(), cause, now(), who.failures)
        else:
            standing = before
            self._begin_anew_after_a_told_stall(worker, standing)
            if standing.cause is WaitReason.PARENT is not cause:
                standing.since_s = now()  # it did not have to get on before
            # A child that failed and was replaced between two looks began another wait.
            if (standing.cause, standing.failures) != (cause, who.failures):
                standing.cause, standing.cause_since_s, standing.failures = cause, now(), who.failures
        self._standing[worker.worker_id, watched.key] = standing
        self._judge(worker, watchdog, shard, standing, cause)

    def _begin_anew_after_a_told_stall(self, worker: Looked, standing: _Standing) -> None:
        """What was told of is over once that is told, too: Kinesis may answer again, and have no record yet."""
        key = worker.worker_id, standing.watched.key
        told_s, ended_s = self._trace.stalls.get(key), self._trace.moves.get(key)
        if told_s is not None and ended_s is not None and standing.since_s <= told_s < ended_s:
            standing.since_s = standing.cause_since_s = ended_s

    def _child_leases(self, shard: ShardTruth) -> frozenset[str]:
        """The shards behind a finished one that have leases: at its end each one made is a step."""
        if not shard.is_closed:
            return frozenset()
        return frozenset(
            name
            for name, child in self._truth.shards.items()
            if shard.shard_id in child.parents and self._rules.checkpoint_of(name) is not None
        )

    def _judge_words(self) -> None:
        """Whether those that were said to stand still did."""
        for (worker_id, key), told_s in self._trace.stalls.items():
            got_on_s = self._got_on_s(worker_id, key)
            if told_s > self._polled_s and got_on_s is not None and told_s - LEAST_S < got_on_s <= told_s:
                report(
                    "false_alarm", f"{worker_id} says that {key} stands still, it got on at {got_on_s:.3f}"
                )
        for worker_id, key, lane, cause in self._trace.lane_stalls:
            if cause == WaitReason.CHILD.value and self._deliveries.has_finished(key, worker_id, lane):
                report(
                    "false_alarm", f"{worker_id} says that lane {lane} of {key} stands still, it has finished"
                )
        self._trace.lane_stalls.clear()
        self._polled_s = now()

    def _got_on_s(self, worker_id: str, key: str) -> float | None:
        """When a lease last got on. Where children fail in turn, records that the next one was given are no progress.

        Lanes may go on for a while with what was read, although nothing can be read or stored.
        """
        cause, lane = self._trace.stall_causes[worker_id, key]
        if cause == WaitReason.RESTART.value or (
            cause in {WaitReason.DYNAMODB.value, WaitReason.KINESIS.value}
            and self._deliveries.has_lanes(worker_id)
        ):
            return self._rules.checkpointed_s.get((worker_id, key))
        reached = self._deliveries.reached.get((worker_id, key))
        if reached is None:
            return None
        return max(reached.at_s.values(), default=None) if lane is None else reached.at_s.get(lane)

    def _has_work(self, shard: ShardTruth, stored: ExtendedSequenceNumber | None) -> bool:
        """Whether there is something to do in a shard, and everybody might know by now."""
        if stored is None or stored.is_shard_end:
            return False
        if not shard.all_delivered:
            # Where reading begins at the latest record, nobody knows what is to be delivered until something was.
            return any(shard.deliveries) or not stored.sequence_number.startswith("LATEST")
        return shard.is_closed

    def _judge(
        self, worker: Looked, watchdog: Watchdog, shard: ShardTruth, standing: _Standing, cause: WaitReason
    ) -> None:
        if self._may_be_held(shard.shard_id):
            standing.since_s = standing.cause_since_s = now()  # it does not have to get on
            return
        if cause in {WaitReason.PAUSED, WaitReason.LIMITED}:
            report("false_hold", f"{worker.worker_id} says that {shard.shard_id} is {cause.value}")
        for_s, says_s = now() - standing.since_s, now() - standing.cause_since_s
        what = f"{worker.worker_id} says of {shard.shard_id} that it waits for {cause.value}"
        if cause is WaitReason.NOTHING_NEW:
            if says_s > watchdog.limits.answer_s + _SLACK_S and not shard.all_delivered:
                number, written_s = shard.missing
                is_old = now() - written_s > watchdog.limits.answer_s + _SLACK_S
                if is_old and not _is_with_a_lane(watched=standing.watched, position=number):
                    report("false_nothing_new", f"{what}, but {number} comes next")
        elif cause is WaitReason.PARENT:
            if self._waits_for_parent(shard):
                standing.parents_finished_s = None
            elif standing.parents_finished_s is None:
                standing.parents_finished_s = now()
            elif now() - standing.parents_finished_s > _UNNOTICED_S:
                report("false_parent", f"{what}, but its parents are finished")
        elif cause is WaitReason.STREAM and says_s > _UNNOTICED_S:
            report("false_stream", f"{what}, but the stream is there")
        limit_s = stall_limit_s(watchdog.limits, cause)
        is_one_wait = limit_s is not None and says_s > limit_s + _SLACK_S
        if not is_one_wait and (for_s <= _ALL_IN_TURN_S or cause is WaitReason.PARENT):
            return
        told_s = self._trace.stalls.get((worker.worker_id, LeaseKey(shard.shard_id)))
        if told_s is None or not watchdog.is_stalled(standing.watched):
            report("silent_stall", f"{what}, has not got on for {for_s:.0f} s, and nothing was logged")

    def _waits_for_parent(self, shard: ShardTruth) -> bool:
        """Whether it waits rightly: for its own parents, or at its end for the other parent of a merged shard."""
        names = {*shard.before}
        for child in self._truth.shards.values():
            if shard.shard_id in child.parents:
                names.update(child.parents)
        names.discard(shard.shard_id)
        return any(not self._is_finished(name) for name in names)

    def _is_finished(self, shard_id: str) -> bool:
        stored = self._rules.checkpoint_of(shard_id)
        return stored.is_shard_end if stored is not None else shard_id not in self._truth.shards


def _is_with_a_lane(watched: ActiveLease, position: Position | str) -> bool:
    """Whether it was read, and its lane works: then people are shown what that lane waits for."""
    window, lanes = watched.progress.window, watched.progress.lanes
    if isinstance(position, str) or not isinstance(window, LaneWindow) or window.slowest is None:
        return False
    slowest = lanes.get(window.slowest)
    is_read = window.mark < ExtendedSequenceNumber(str(position[0]), position[1]) <= window.high
    return is_read and slowest is not None and slowest.progress.cause is not WaitReason.KINESIS
