"""The rules of the lease table: who may write what (reference: KCL's rows), checked at every write.

Owns a copy of all lease rows as the writes left them. Reads rows by their wire names on its own, so that a mistake in
the daemon's row codec cannot hide here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from kcl_daemon.leases.row import Row, Value
from kcl_protocol.sequence import LATEST, ExtendedSequenceNumber
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import now
from tests.simulator.rules.truth import Truth
from tests.simulator.violation import report

KNOWN_ATTRIBUTES: Final = frozenset({
    "leaseKey", "entityType", "leaseCounter", "leaseOwner", "checkpointOwner", "ownerSwitchesSinceCheckpoint",
    "checkpoint", "checkpointSubSequenceNumber", "pendingCheckpoint", "pendingCheckpointSubSequenceNumber",
    "pendingCheckpointState", "parentShardId", "childShardIds", "startingHashKey", "endingHashKey", "throughputKBps",
    "streamName", "shardId", "daemonDegraded", "daemonStreamCreated", "daemonLanes", "daemonStandby", "daemonFence",
    "daemonReached",
})  # fmt: skip

# A call that found the stream may have begun just before.
_GONE_S: Final = 15.0
# The longest that a call of KCL may take, with all its tries (dynamoDbRequestTimeout).
_JAVA_READ_S: Final = 60.0


class Asked(Protocol):
    """What the children asked for."""

    def was_asked(self, shard_id: str, worker_id: str, position: ExtendedSequenceNumber) -> bool:
        """Whether a child of this worker asked for this position of this shard."""
        ...

    def was_passed(
        self, shard_id: str, worker_id: str, before: ExtendedSequenceNumber, position: ExtendedSequenceNumber
    ) -> bool:
        """Whether the worker itself may store this position, because what it adds is for no child."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease row as the checkers read it.

    Raises:
        ValueError: the row is not well-formed; the message says why.
    """

    counter: int
    switches: int
    checkpoint: ExtendedSequenceNumber
    owner: str | None
    checkpoint_owner: str | None

    @property
    def reader(self) -> str | None:
        """Who may checkpoint now."""
        return self.checkpoint_owner or self.owner

    @staticmethod
    def of(row: Row) -> LeaseView:
        """The view of a row."""
        for name, value in row.items():
            if not value and value in ("", frozenset()):
                raise ValueError(f"{name} is empty")
        return LeaseView(
            counter=_integer(row, "leaseCounter"),
            switches=_integer(row, "ownerSwitchesSinceCheckpoint"),
            checkpoint=ExtendedSequenceNumber(
                _text(row, "checkpoint") or "", _integer(row, "checkpointSubSequenceNumber")
            ),
            owner=_text(row, "leaseOwner"),
            checkpoint_owner=_text(row, "checkpointOwner"),
        )


def _integer(row: Row, name: str) -> int:
    value = row.get(name)
    if type(value) is not int:
        raise ValueError(f"{name} is no whole number: {value!r}")
    return value


def _text(row: Row, name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is no text: {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """A write on an existing lease row that leaves one."""

    write: RowWrite
    before: LeaseView
    after: LeaseView

    @property
    def starts_handoff(self) -> bool:
        """Whether it names a next owner while the old one goes on."""
        return (
            self.before.checkpoint_owner is None
            and self.after.checkpoint_owner is not None
            and self.after.checkpoint_owner == self.before.owner
        )


class LeaseTableRules:
    """Watches the lease table; also tells others what it holds.

    Args:
        table: name of the lease table.
        truth: the stream.
        lease_s: a lease that has moved within this time (true seconds) is somebody's.
        may_steal: workers may take what somebody keeps alive, for themselves (KCL 2.x).
        hands_over_at_once: the leader gives leases away without a hand-off.
        at_latest: who reads a stream for the first time begins at its latest record.
    """

    def __init__(
        self,
        table: str,
        truth: Truth,
        *,
        lease_s: float,
        may_steal: bool = False,
        hands_over_at_once: bool = False,
        at_latest: bool = False,
    ) -> None:
        self._table = table
        self._truth = truth
        self._lease_s = lease_s
        self._may_steal = may_steal
        self._hands_over_at_once = hands_over_at_once
        self._at_latest = at_latest
        self._begun: set[str] = set()
        self._past: set[str] = set()
        self._passed_by: set[str] = set()
        self._moved_s: dict[str, float] = {}
        self._moved_again_s: dict[str, float] = {}
        self.asked: Asked | None = None
        self.may_succeed: Callable[[str, str], bool] = lambda _writer, _former: False
        self.is_java: Callable[[str], bool] = lambda _writer: False
        self.clocks_apart_s = 0.0
        self.rows: dict[str, Row] = {}
        self.views: dict[str, LeaseView] = {}
        self.deleted: set[str] = set()
        self.given_s: dict[str, float] = {}
        """When somebody else made its owner the owner of a lease, which has not written it since."""
        self._forgotten: set[str] = set()
        self.checkpoints = 0
        self.checkpointed_s: dict[tuple[str, str], float] = {}
        """Virtual time of the last checkpoint that each worker has stored of a shard."""
        self._fences: dict[str, dict[int, RowWrite]] = {}
        self._rules: tuple[Callable[[LeaseChange], str | None], ...] = (
            self._strange_attributes,
            self._checkpoint_backwards,
            self._checkpoint_by_stranger,
            self._checkpoint_never_asked,
            self._shard_end_too_early,
            self._counter,
            self._owner_switches,
            self._taken_early,
        )

    def checkpoint_of(self, shard_id: str) -> ExtendedSequenceNumber | None:
        """The stored checkpoint of a shard; None: there is no row."""
        view = self.views.get(shard_id)
        return None if view is None else view.checkpoint

    def was_passed_by(self, shard_id: str) -> bool:
        """Whether nobody need read it, as reading began behind it."""
        return shard_id in self._passed_by

    def was_forgotten(self, shard_id: str) -> bool:
        """Whether somebody outside the fleet has deleted its row, and with it what was stored."""
        return shard_id in self._forgotten

    def restore(self, key: str, row: Row) -> None:
        """Somebody outside the fleet wrote a row."""
        self.rows[key] = row
        self.views[key] = LeaseView.of(row)
        self._begun.add(_stream_of(key))

    def forget(self, key: str) -> None:
        """Somebody outside the fleet deleted a row, which should not have been."""
        del self.rows[key], self.views[key]
        self._forgotten.add(key)

    def claimed_with(self, shard_id: str, token: object) -> RowWrite | None:
        """The write that made this the fencing token of a shard; None: there was none."""
        return self._fences.get(shard_id, {}).get(token) if isinstance(token, int) else None

    def row_written(self, write: RowWrite) -> None:
        """Check a write and remember the row."""
        if write.table != self._table or not is_lease(write):
            return
        try:
            before = self._view_before(write)
            after = None if write.after is None else LeaseView.of(write.after)
        except ValueError as malformed:
            report("malformed_row", f"{write.worker_id} wrote {write.key}: {malformed}")
            return
        match before, after:
            case None, LeaseView():
                self._created(write, after)
            case LeaseView(), None:
                self._deleted(write, before)
            case LeaseView(), LeaseView():
                self._changed(LeaseChange(write, before, after))
            case _:
                pass
        self._fence(write)
        if write.after is None or after is None:
            self.rows.pop(write.key, None)
            self.views.pop(write.key, None)
            self.deleted.add(write.key)
        else:
            self.rows[write.key] = write.after
            self.views[write.key] = after
            if write.worker_id == after.owner:
                self.given_s.pop(write.key, None)
            elif before is None or before.owner != after.owner:
                self.given_s[write.key] = write.at_s
            self.deleted.discard(write.key)
            if before is None or before.counter != after.counter:
                if write.at_s - self._moved_s.get(write.key, write.at_s) >= self._lease_s:
                    self._moved_again_s[write.key] = write.at_s
                self._moved_s[write.key] = write.at_s

    def not_released(self, left_s: Mapping[str, float], index_lag_s: float) -> Iterator[tuple[str, str]]:
        """Which leases those have who stopped at these times; what the index could not show them then does not count."""
        for key, view in self.views.items():
            if view.reader is None or view.reader not in left_s or view.checkpoint.is_shard_end:
                continue
            given_s = self.given_s.get(key)
            if given_s is None or abs(given_s - left_s[view.reader]) > index_lag_s:
                yield key, view.reader

    def _fence(self, write: RowWrite) -> None:
        """It only grows, by a write that makes its writer the reader; each claim of ours has one of its own."""
        if write.after is None:
            return
        old, new = (row.get("daemonFence") for row in (write.before or {}, write.after))
        known, view = self._fences.setdefault(write.key, {}), LeaseView.of(write.after)
        becomes = view.owner == write.worker_id and view.reader == write.worker_id
        taken = becomes and (write.before is None or write.before.get("leaseOwner") != write.worker_id)
        if old == new:
            if taken and not self.is_java(write.worker_id):
                report(
                    "claimed_without_token", f"{write.worker_id} took {write.key}, its token stays {new!r}"
                )
            return
        newest = max(known, default=0)
        # The row was deleted meanwhile: then the clocks decide.
        is_anew = bool(known) and old is None and write.at_s - known[newest].at_s <= self.clocks_apart_s
        if not isinstance(new, int) or (new <= newest and not is_anew):
            report("token_backwards", f"{write.worker_id} wrote {write.key}: {new!r} after {newest}")
        elif not becomes:
            report("token_of_stranger", f"{write.worker_id} wrote {write.key}: {new}, {view.reader} reads it")
        else:
            known[new] = write

    def _view_before(self, write: RowWrite) -> LeaseView | None:
        if write.before is None:
            return None
        known = self.views.get(write.key)
        return (
            known
            if known is not None and self.rows[write.key] is write.before
            else LeaseView.of(write.before)
        )

    def _created(self, write: RowWrite, after: LeaseView) -> None:
        gone = self._truth.gone_for_s(write.key, write.at_s)
        if gone is not None and gone > _GONE_S:
            report(
                "created_for_gone",
                f"{write.worker_id} created {write.key}, its stream is gone for {gone:.0f} s",
            )
        if write.key not in self._truth.shards:
            report(
                "unknown_shard", f"{write.worker_id} created a lease for {write.key}, which the stream lacks"
            )
        if self._at_latest:
            self._begin_reading(write.key)
            if after.checkpoint == LATEST:
                self._passes_by(self._truth.shards[write.key].parents)
        if not after.checkpoint.is_sentinel or after.checkpoint.is_shard_end:
            report("created_ahead", f"{write.worker_id} created {write.key} at {after.checkpoint}")
        if (
            after.owner not in (None, write.worker_id)
            or after.checkpoint_owner
            or after.counter
            or after.switches
        ):
            report("malformed_row", f"{write.worker_id} created {write.key} not as a fresh lease: {after}")

    def _begin_reading(self, key: str) -> None:
        """With the first lease of a stream; what was closed by then is nobody's, unless it gets a lease all the same."""
        stream, created = _stream_of(key), self._truth.shards.get(key)
        if stream not in self._begun:
            for shard in self._truth.shards.values():
                if (
                    shard.is_closed
                    and not (shard.is_past or shard.is_scan)
                    and _stream_of(shard.shard_id) == stream
                ):
                    shard.is_past = True
                    self._past.add(shard.shard_id)
        self._begun.add(stream)
        if created is not None and key in self._past:
            created.is_past = False

    def _passes_by(self, parents: Iterable[str]) -> None:
        """Who begins at the latest record of a shard reads nothing before it: a closed parent without a lease is nobody's.

        Its lease could not be created before it was closed, and may be created late: by then its children are read.
        """
        for name in parents:
            shard = self._truth.shards.get(name)
            if shard is not None and shard.is_closed and name not in self.views and name not in self.deleted:
                shard.is_past = True
                self._past.discard(name)
                self._passed_by.add(name)
                self._passes_by(shard.parents)

    def _deleted(self, write: RowWrite, before: LeaseView) -> None:
        if self._truth.gone_for_s(write.key, write.at_s) is not None:
            return  # with its stream
        if not before.checkpoint.is_shard_end:
            report("deleted_unfinished", f"{write.worker_id} deleted {write.key} at {before.checkpoint}")
        for shard in self._truth.shards.values():
            if write.key not in shard.parents or shard.is_past or shard.shard_id in self.deleted:
                continue
            child = self.views.get(shard.shard_id)
            if child is None or child.checkpoint.sequence_number in {"TRIM_HORIZON", "AT_TIMESTAMP"}:
                report(
                    "deleted_too_early",
                    f"{write.worker_id} deleted {write.key}, {shard.shard_id} has not begun",
                )

    def _changed(self, change: LeaseChange) -> None:
        if change.before.checkpoint != change.after.checkpoint:
            self.checkpoints += 1
            self.checkpointed_s[change.write.worker_id, change.write.key] = now()
        for rule in self._rules:
            broken = rule(change)
            if broken is not None:
                write = change.write
                report(rule.__name__.removeprefix("_"), f"{write.worker_id} wrote {write.key}: {broken}")

    def _strange_attributes(self, change: LeaseChange) -> str | None:
        before, after = change.write.before, change.write.after
        assert before is not None
        assert after is not None
        if before.keys() <= KNOWN_ATTRIBUTES and after.keys() <= KNOWN_ATTRIBUTES:
            return None
        for name in sorted((before.keys() | after.keys()) - KNOWN_ATTRIBUTES):
            if before.get(name) != after.get(name):
                return f"{name}, which is not ours, became {after.get(name)!r}"
        return None

    def _checkpoint_backwards(self, change: LeaseChange) -> str | None:
        before, after = change.before.checkpoint, change.after.checkpoint
        return f"from {before} back to {after}" if after < before else None

    def _checkpoint_by_stranger(self, change: LeaseChange) -> str | None:
        if change.before.checkpoint == change.after.checkpoint:
            return None
        if change.before.reader == change.write.worker_id:
            return None
        return f"to {change.after.checkpoint}, but {change.before.reader} reads it"

    def _checkpoint_never_asked(self, change: LeaseChange) -> str | None:
        position = change.after.checkpoint
        if position == change.before.checkpoint or self.asked is None:
            return None
        key, worker_id = change.write.key, change.write.worker_id
        if self.asked.was_asked(key, worker_id, position):
            return None
        if self.asked.was_passed(key, worker_id, change.before.checkpoint, position):
            return None
        return f"to {position}, for which no child of it asked"

    def _shard_end_too_early(self, change: LeaseChange) -> str | None:
        if not change.after.checkpoint.is_shard_end or change.before.checkpoint.is_shard_end:
            return None
        shard = self._truth.shards[change.write.key]
        if shard.is_closed and shard.all_delivered:
            return None
        return "finished, but the shard is open or has records that nobody was given"

    def _counter(self, change: LeaseChange) -> str | None:
        before, after = change.before, change.after
        raised = after.counter - before.counter
        if raised not in {0, 1}:
            return f"counter from {before.counter} to {after.counter}"
        owners_changed = (before.owner, before.checkpoint_owner) != (after.owner, after.checkpoint_owner)
        fenced = before.checkpoint != after.checkpoint or (owners_changed and not change.starts_handoff)
        if fenced and not raised:
            return f"changed without raising the counter: {before} to {after}"
        return None

    def _taken_early(self, change: LeaseChange) -> str | None:
        """A lease that somebody keeps alive changes hands only by hand-off or by its holder's own write."""
        before, after, write = change.before, change.after, change.write
        passed_on = before.counter != after.counter and before.checkpoint == after.checkpoint
        if not passed_on or before.owner is None or write.worker_id == before.reader:
            return None
        if before.checkpoint_owner is not None:
            return None  # the leader may cut a hand-off short
        if before.checkpoint.is_shard_end:
            return None  # nobody reads it any more; a Java leader moves it like that to even out its load
        steals = self._may_steal and after.owner == write.worker_id
        if self._hands_over_at_once or steals or self.may_succeed(write.worker_id, before.owner):
            return None
        stood_still_s = write.at_s - self._moved_s.get(write.key, 0.0)
        if stood_still_s >= self._lease_s or self._was_read_before(write):
            return None
        return f"given to {after.owner} after it had stood still for {stood_still_s:.1f} s, {before.owner} held it"

    def _was_read_before(self, write: RowWrite) -> bool:
        """Java does not fence an assignment by the counter: it may be of a read from before the holder came back."""
        moved_again_s = self._moved_again_s.get(write.key)
        since_s = inf if moved_again_s is None else write.at_s - moved_again_s
        return since_s <= _JAVA_READ_S and self.is_java(write.worker_id)

    def _owner_switches(self, change: LeaseChange) -> str | None:
        before, after = change.before, change.after
        if before.checkpoint != after.checkpoint:
            return None if after.switches == 0 else f"{after.switches} owner switches after a checkpoint"
        if after.switches not in {0, before.switches, before.switches + 1}:
            return f"owner switches from {before.switches} to {after.switches}"
        return None


class ForeignRows:
    """Rows of a version that nobody here knows, and its attribute on rows of leader and workers: all stays as it was."""

    SECOND_LEADER: Final = "DeployingLeader"
    ATTRIBUTE: Final = "versionHash"

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()

    def add(self, table: str, key: str) -> None:
        """Somebody else has written this row."""
        self._keys.add((table, key))

    def row_written(self, write: RowWrite) -> None:
        """Check a write."""
        if (write.table, write.key) in self._keys:
            report("foreign_row_touched", f"{write.worker_id} wrote {write.table} {write.key}: {write.after}")
        before, after, name = write.before or {}, write.after, self.ATTRIBUTE
        if after is None or name not in before or before.get("ownerName") != after.get("ownerName"):
            return  # who stops takes its own rows away; the next leader writes the lock anew, as KCL's lock client does
        if before[name] != after.get(name):
            report(
                "foreign_attribute", f"{write.worker_id} wrote {write.key}: {name} became {after.get(name)!r}"
            )


def _stream_of(key: str) -> str:
    """What comes before the shard in a lease key."""
    return key.rpartition(":")[0]


def is_lease(write: RowWrite) -> bool:
    """Whether a row is a lease: all may be in one table."""
    row = write.after if write.after is not None else write.before
    entity: Value = "LEASE" if row is None else row.get("entityType", "LEASE")
    return entity == "LEASE"
