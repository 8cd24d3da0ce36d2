"""The rows of the lease table and every conditional write on them (KCL: DynamoDBLeaseSerializer).

str = S, int and Decimal = N, bytes = B, frozenset of str = SS, tuple = L, dict = M. No write replaces a lease row, so
attributes of other programs survive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Final, TypeAlias, cast

from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, ShardId, StreamIdentity, WorkerId
from kcl_protocol.sequence import ExtendedSequenceNumber

Value: TypeAlias = "str | int | Decimal | bytes | frozenset[str] | tuple[Value, ...] | Mapping[str, Value]"
Row: TypeAlias = Mapping[str, Value]

KEY: Final = "leaseKey"
OWNER: Final = "leaseOwner"
OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
_ENTITY: Final = "entityType"
_LEASE_ENTITY: Final = "LEASE"
_COUNTER: Final = "leaseCounter"
_CHECKPOINT_OWNER: Final = "checkpointOwner"
_SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
_CHECKPOINT: Final = "checkpoint"
_CHECKPOINT_SUB: Final = "checkpointSubSequenceNumber"
_PENDING: Final = "pendingCheckpoint"
_PENDING_SUB: Final = "pendingCheckpointSubSequenceNumber"
_PENDING_STATE: Final = "pendingCheckpointState"
_PARENTS: Final = "parentShardId"  # singular, but a set
_CHILDREN: Final = "childShardIds"
_HASH_START: Final = "startingHashKey"
_HASH_END: Final = "endingHashKey"
_THROUGHPUT: Final = "throughputKBps"
_FIGURE_BELOW: Final = 10**12
_STREAM: Final = "streamName"
_SHARD: Final = "shardId"
# Our own; KCL ignores and keeps them.
_DEGRADED: Final = "daemonDegraded"
_STREAM_CREATED: Final = "daemonStreamCreated"
_LANES: Final = "daemonLanes"
_STANDBY: Final = "daemonStandby"
_FENCE: Final = "daemonFence"
_REACHED: Final = "daemonReached"

_SIX_PLACES: Final = Decimal("0.000001")
_NO_SHARDS: Final = frozenset[ShardId]()
_SHARDS_REMEMBERED: Final = 4096
# A Java long.
_INTEGER_MOST: Final = 2**63 - 1
_TIME_DIGITS_MOST: Final = 15
# A hash key has 39 digits. Python raises ValueError for thousands.
_HASH_DIGITS_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class Equals:
    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Absent:
    attribute: str


@dataclass(frozen=True, slots=True)
class Present:
    attribute: str


Condition = Equals | Absent | Present
Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """One conditional UpdateItem; without conditions an upsert. An absent row has no attributes.

    `add` counts an absent attribute as 0; `remove` ignores an absent one.
    """

    key: str
    put: Row = field(default_factory=dict[str, Value])
    add: Mapping[str, int] = field(default_factory=dict[str, int])
    remove: frozenset[str] = frozenset()
    require: Conditions = ()


@dataclass(frozen=True, slots=True)
class RowCheck:
    key: str
    require: Conditions


@dataclass(frozen=True, slots=True)
class RowPut:
    row: Row
    require: Conditions = ()


@dataclass(frozen=True, slots=True)
class RowDelete:
    key: str
    require: Conditions = ()


RowPart: TypeAlias = RowCheck | RowPut | RowDelete


@dataclass(frozen=True, slots=True)
class WriteResult:
    """`row` is the row after the write (None after a delete), or the row that failed the conditions."""

    applied: bool
    row: Row | None


class MalformedRowError(ValueError):
    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"row {key:.300}: {problem}")
        self.key = key
        self.problem = problem


def is_lease_row(row: Row) -> bool:
    return row.get(_ENTITY, _LEASE_ENTITY) == _LEASE_ENTITY


def is_multi_stream_row(row: Row) -> bool:
    return _STREAM in row


def lease_from_row(row: Row) -> Lease:
    """Ignores unknown attributes; MalformedRowError for a missing or wrong one."""
    reader = _Reader(row)
    counter, position = reader.integer(_COUNTER), reader.position(_CHECKPOINT, _CHECKPOINT_SUB)
    return Lease(
        lease_key=LeaseKey(reader.key),
        lease_counter=counter,
        checkpoint=position,
        lease_owner=reader.worker(OWNER),
        checkpoint_owner=reader.worker(_CHECKPOINT_OWNER),
        owner_switches_since_checkpoint=reader.integer(_SWITCHES, absent=0),
        pending_checkpoint=reader.position(_PENDING, _PENDING_SUB) if row.get(_PENDING) else None,
        pending_checkpoint_state=reader.binary(_PENDING_STATE),
        parent_shard_ids=reader.shard_ids(_PARENTS),
        child_shard_ids=reader.shard_ids(_CHILDREN),
        hash_range=reader.hash_range(),
        throughput_kbps=reader.figure(_THROUGHPUT),
        stream=reader.stream() if _STREAM in row else None,
        degraded_by=reader.worker(_DEGRADED),
        stream_created_s=created if isinstance(created := row.get(_STREAM_CREATED), int) else None,
        lanes=_lanes_from(row.get(_LANES), position) if _LANES in row else (),
        standby=standby if isinstance(standby := row.get(_STANDBY), str) else None,
        fence=reader.integer(_FENCE) if isinstance(row.get(_FENCE), int) else None,
        reached_ms=_reached_from(row[_REACHED], position) if _REACHED in row else None,
    )


def readable_lease(row: Row | None) -> Lease | None:
    """None if the row is absent, no lease or malformed."""
    try:
        return lease_from_row(row) if row is not None and is_lease_row(row) else None
    except MalformedRowError:
        return None


def new_lease_row(lease: Lease) -> Row:
    row: dict[str, Value] = {
        KEY: lease.lease_key,
        _ENTITY: _LEASE_ENTITY,
        _COUNTER: lease.lease_counter,
        _SWITCHES: lease.owner_switches_since_checkpoint,
        **_position(_CHECKPOINT, _CHECKPOINT_SUB, lease.checkpoint),
        **_place(lease),
    }
    if lease.lease_owner is not None:
        row[OWNER] = lease.lease_owner
    if lease.parent_shard_ids:
        row[_PARENTS] = frozenset[str](lease.parent_shard_ids)
    if lease.child_shard_ids:
        row[_CHILDREN] = frozenset[str](lease.child_shard_ids)
    row.update(_hash_range(lease.hash_range))
    if lease.stream_created_s is not None:
        row[_STREAM_CREATED] = lease.stream_created_s
    if lease.fence is not None:
        row[_FENCE] = lease.fence
    return row


def creation(lease: Lease) -> tuple[Row, tuple[Condition, ...]]:
    return new_lease_row(lease), (Absent(KEY),)


def renewal(
    lease: Lease,
    throughput_kbps: float | None,
    lanes: Sequence[ExtendedSequenceNumber] = (),
    reached_ms: int | None = None,
) -> RowUpdate:
    """Refused when another process wrote the lease, or when a handoff began that we have not read yet."""
    put: dict[str, Value] = {
        _COUNTER: lease.lease_counter + 1,
        **_throughput(throughput_kbps),
        **_lanes(lease.checkpoint, lanes),
        **({} if reached_ms is None else {_REACHED: f"{reached_ms} {lease.checkpoint}"}),
    }
    handoff: tuple[Condition, ...] = () if lease.checkpoint_owner else (Absent(_CHECKPOINT_OWNER),)
    return RowUpdate(lease.lease_key, put=put, require=(_counter_is(lease), *handoff))


def claimed(update: RowUpdate, lease: Lease, now_ms: int) -> RowUpdate:
    """Its writer becomes the reader. It requires the token as read, if not the counter."""
    as_read = Absent(_FENCE) if lease.fence is None else Equals(_FENCE, lease.fence)
    require = update.require if _counter_is(lease) in update.require else (*update.require, as_read)
    return replace(update, put={**update.put, _FENCE: lease.next_fence(now_ms)}, require=require)


def checkpoint(
    lease: Lease,
    position: ExtendedSequenceNumber,
    throughput_kbps: float | None = None,
    lanes: Sequence[ExtendedSequenceNumber] = (),
) -> RowUpdate:
    """As in KCL only the counter is the fence, so it succeeds during a handoff.

    Unlike KCL it writes the throughput, and 0 at SHARD_END: a Java leader would count the old one forever.
    """
    if position.is_shard_end:
        throughput_kbps = 0.0
    put: dict[str, Value] = {
        _COUNTER: lease.lease_counter + 1,
        _SWITCHES: 0,
        **_position(_CHECKPOINT, _CHECKPOINT_SUB, position),
        **_hash_range(lease.hash_range),
        **_throughput(throughput_kbps),
        **_place(lease),
        **_lanes(position, lanes),
    }
    if lease.child_shard_ids:
        put[_CHILDREN] = frozenset[str](lease.child_shard_ids)
    return RowUpdate(
        lease.lease_key,
        put=put,
        remove=frozenset({_PENDING, _PENDING_SUB, _PENDING_STATE, *_outdated(lease)} - put.keys()),
        require=(_counter_is(lease),),
    )


def assignment(lease: Lease, to: WorkerId, *, only_if_untouched: bool = False) -> RowUpdate:
    """Also ends a handoff. `only_if_untouched` requires the counter.

    KCL does not, and can take a lease that looked abandoned from a live owner.
    """
    return RowUpdate(
        lease.lease_key,
        put={OWNER: to},
        add={_COUNTER: 1, **_switch(lease, to)},
        remove=_end_of_handoff(lease),
        require=(*_as_read(lease), *((_counter_is(lease),) if only_if_untouched else ())),
    )


def steal_or_take(lease: Lease, me: WorkerId) -> RowUpdate:
    """As KCL 2.x does: the counter is the only fence, and the write ends any handoff."""
    return RowUpdate(
        lease.lease_key,
        put={OWNER: me, _COUNTER: lease.lease_counter + 1},
        add=_switch(lease, me),
        remove=_end_of_handoff(lease),
        require=(_counter_is(lease),),
    )


def handoff(
    lease: Lease, to: WorkerId, *, only_if_untouched: bool = False, standby: bool = False
) -> RowUpdate:
    """Ask the owner to finish and release the lease to `to`; its renewals still succeed: the counter stays.

    The owner itself sets `only_if_untouched`. `standby`: the next owner starts its child first, and the old one reads
    on meanwhile.
    """
    if lease.lease_owner is None or lease.checkpoint_owner is not None:
        raise ValueError(
            f"{lease.lease_key} cannot be handed off: owner {lease.lease_owner}, handoff {lease.checkpoint_owner}"
        )
    asked: dict[str, Value] = {_STANDBY: f"asked {to}"} if standby else {}
    return RowUpdate(
        lease.lease_key,
        put={OWNER: to, _CHECKPOINT_OWNER: lease.lease_owner, **asked},
        remove=frozenset() if standby else _former_standby(lease),
        require=(*_as_read(lease), *((_counter_is(lease),) if only_if_untouched else ())),
    )


def ready(lease: Lease) -> RowUpdate:
    """The next owner was asked to start its child first, and has. The counter stays."""
    return RowUpdate(
        lease.lease_key,
        put={_STANDBY: f"ready {lease.lease_owner}"},
        require=(*_as_read(lease), Equals(_STANDBY, f"asked {lease.lease_owner}")),
    )


def release(lease: Lease, *, degraded_by: WorkerId | None = None) -> RowUpdate:
    """`degraded_by`: the owner whose children kept failing."""
    return RowUpdate(
        lease.lease_key,
        put={} if degraded_by is None else {_DEGRADED: degraded_by},
        add={_COUNTER: 1},
        remove=frozenset({OWNER}) | _end_of_handoff(lease),
        require=if_unchanged(lease),
    )


def child_ids_update(lease: Lease, child_shard_ids: frozenset[ShardId]) -> RowUpdate:
    return RowUpdate(
        lease.lease_key,
        put={_CHILDREN: frozenset[str](child_shard_ids)},
        require=(Equals(KEY, lease.lease_key),),
    )


def hash_range_update(lease: Lease, hash_range: HashRange) -> RowUpdate:
    """For a lease of an old version; the counter stays."""
    return RowUpdate(
        lease.lease_key,
        put=_hash_range(hash_range),
        require=(Equals(KEY, lease.lease_key), Absent(_HASH_START)),
    )


def stream_creation_update(lease: Lease, created_s: int) -> RowUpdate:
    """The epoch in the lease key is no proof: a program of KCL may configure any. The counter stays."""
    return RowUpdate(
        lease.lease_key,
        put={_STREAM_CREATED: created_s},
        require=(Equals(KEY, lease.lease_key), Absent(_STREAM_CREATED)),
    )


def if_still_finished(lease: Lease) -> tuple[Condition, ...]:
    """For deleting a finished lease; KCL deletes without a condition.

    Others may still renew it; one that was moved back by hand is no longer finished.
    """
    return (Equals(KEY, lease.lease_key), Equals(_CHECKPOINT, lease.checkpoint.sequence_number))


def if_exists(lease: Lease) -> tuple[Condition, ...]:
    """For deleting the lease of a former stream: other workers may still renew it."""
    return (Equals(KEY, lease.lease_key),)


def reposition(lease: Lease, position: ExtendedSequenceNumber) -> RowUpdate:
    """Move a lease by hand. It loses its owner, so the current reader stops first."""
    return RowUpdate(
        lease.lease_key,
        put={_SWITCHES: 0, **_position(_CHECKPOINT, _CHECKPOINT_SUB, position)},
        add={_COUNTER: 1},
        remove=frozenset({OWNER, _PENDING, _PENDING_SUB, _PENDING_STATE, *_outdated(lease)})
        | _end_of_handoff(lease),
        require=if_unchanged(lease),
    )


def if_unchanged(lease: Lease) -> tuple[Condition, ...]:
    return (*_as_read(lease), _counter_is(lease))


def _outdated(lease: Lease) -> tuple[str, ...]:
    return (_LANES, _REACHED, *(() if lease.degraded_by is None else (_DEGRADED,)))


def _end_of_handoff(lease: Lease) -> frozenset[str]:
    return frozenset({_CHECKPOINT_OWNER}) | _former_standby(lease)


def _former_standby(lease: Lease) -> frozenset[str]:
    return frozenset() if lease.standby is None else frozenset({_STANDBY})


def _counter_is(lease: Lease) -> Condition:
    return Equals(_COUNTER, lease.lease_counter)


def _as_read(lease: Lease) -> tuple[Condition, ...]:
    return (
        Equals(KEY, lease.lease_key),
        _owner_is(OWNER, lease.lease_owner),
        _owner_is(_CHECKPOINT_OWNER, lease.checkpoint_owner),
    )


def _owner_is(attribute: str, owner: WorkerId | None) -> Condition:
    return Absent(attribute) if owner is None else Equals(attribute, owner)


def _switch(lease: Lease, to: WorkerId) -> dict[str, int]:
    """As in KCL a first assignment and the end of a handoff do not count."""
    switched = (lease.lease_owner is not None and lease.lease_owner != to) or lease.checkpoint_owner == to
    return {_SWITCHES: 1} if switched else {}


def _place(lease: Lease) -> dict[str, Value]:
    return {} if lease.stream is None else {_STREAM: str(lease.stream), _SHARD: str(lease.shard_id)}


def _throughput(kbps: float | None) -> dict[str, Value]:
    if kbps is None:
        return {}
    return {_THROUGHPUT: Decimal(str(kbps)).quantize(_SIX_PLACES, rounding=ROUND_HALF_UP)}


def _lanes(mark: ExtendedSequenceNumber, lanes: Sequence[ExtendedSequenceNumber]) -> dict[str, Value]:
    if not lanes or mark.is_shard_end:
        return {}
    return {_LANES: {"checkpoint": str(mark), "lanes": tuple(map(str, lanes))}}


def _lanes_from(value: Value | None, mark: ExtendedSequenceNumber) -> tuple[ExtendedSequenceNumber, ...]:
    """Nothing if the checkpoint is another one: a worker without lanes, or a person, has moved it."""
    try:
        if isinstance(value, Mapping) and _position_of(str(value.get("checkpoint"))) == mark:
            lanes = value.get("lanes")
            return tuple(_position_of(str(lane)) for lane in lanes) if isinstance(lanes, tuple) else ()
    except ValueError:
        pass  # it only saves repeats
    return ()


def _reached_from(value: Value, checkpoint: ExtendedSequenceNumber) -> int | None:
    """None if the checkpoint is another one."""
    reached, _, at = value.partition(" ") if isinstance(value, str) else ("", "", "")
    is_time = reached.isdecimal() and len(reached) <= _TIME_DIGITS_MOST
    return int(reached) if is_time and at == str(checkpoint) else None


def _position_of(text: str) -> ExtendedSequenceNumber:
    number, _, sub_number = text.partition("/")
    return ExtendedSequenceNumber(number, int(sub_number or 0))


def _position(name: str, sub_name: str, position: ExtendedSequenceNumber) -> dict[str, Value]:
    return {name: str(position.sequence_number), sub_name: position.sub_sequence_number}


def _hash_range(hash_range: HashRange | None) -> dict[str, Value]:
    return {} if hash_range is None else {_HASH_START: str(hash_range.start), _HASH_END: str(hash_range.end)}


class _Reader:
    def __init__(self, row: Row) -> None:
        self._row = row
        key = row.get(KEY)
        self.key = key if isinstance(key, str) else repr(key)

    def _wrong(self, name: str, wanted: str) -> MalformedRowError:
        found = repr(self._row[name])[:80] if name in self._row else "nothing"
        return MalformedRowError(self.key, f"{name} should be {wanted}, found {found}")

    def text(self, name: str) -> str | None:
        value = self._row.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def worker(self, name: str) -> WorkerId | None:
        return WorkerId(text) if (text := self.text(name)) else None

    def integer(self, name: str, *, absent: int | None = None) -> int:
        value = self._row.get(name, absent)
        if not isinstance(value, int) or abs(value) > _INTEGER_MOST:
            raise self._wrong(name, "a whole number of 64 bits")
        return value

    def figure(self, name: str) -> float | None:
        """None: there is none, or one that no worker measures. Only hints are read so."""
        value = self._row.get(name)
        if value is None:
            return None
        if not isinstance(value, int | Decimal):
            raise self._wrong(name, "a number")
        return float(value) if 0 <= value < _FIGURE_BELOW else None

    def binary(self, name: str) -> bytes | None:
        value = self._row.get(name)
        if value is not None and not isinstance(value, bytes):
            raise self._wrong(name, "binary")
        return value

    def shard_ids(self, name: str) -> frozenset[ShardId]:
        value = self._row.get(name)
        if value is None:
            return _NO_SHARDS
        if not isinstance(value, frozenset):
            raise self._wrong(name, "a set of strings")
        return cast("frozenset[ShardId]", value)

    def position(self, name: str, sub_name: str) -> ExtendedSequenceNumber:
        text = self.text(name)
        sub = self._row.get(sub_name, 0)
        try:
            if text is None or not isinstance(sub, int) or sub > _INTEGER_MOST:
                raise self._wrong(name, f"a sequence number, {sub_name} a whole number")
            return ExtendedSequenceNumber(text, sub)
        except ValueError as wrong:
            raise self._wrong(name, f"a sequence number or sentinel ({wrong})") from wrong

    def stream(self) -> StreamIdentity:
        name, shard_id = self.text(_STREAM) or "", self.text(_SHARD)
        try:
            stream = _parsed_stream(name)
        except ValueError as wrong:
            raise self._wrong(_STREAM, "account:name:creationEpoch") from wrong
        if not shard_id or self.key != f"{name}:{shard_id}":
            raise self._wrong(_SHARD, f"what follows {name}: in the key")
        return stream

    def hash_range(self) -> HashRange | None:
        start, end = self.text(_HASH_START), self.text(_HASH_END)
        if start is None or end is None:
            return None
        hash_range = _parsed_hash_range(start, end)
        if hash_range is None:
            raise self._wrong(_HASH_START, f"below {_HASH_END} {end[:80]!r}")
        return hash_range


@lru_cache(maxsize=_SHARDS_REMEMBERED)
def _parsed_stream(text: str) -> StreamIdentity:
    return StreamIdentity.parse(text)


@lru_cache(maxsize=_SHARDS_REMEMBERED)
def _parsed_hash_range(start: str, end: str) -> HashRange | None:
    if max(len(start), len(end)) > _HASH_DIGITS_MOST or not (start.isdecimal() and end.isdecimal()):
        return None
    if int(start) > int(end):
        return None
    return HashRange(int(start), int(end))
