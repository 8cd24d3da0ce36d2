"""Fleets that are sick, each in one way, as a daemon of them tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from kcl_daemon.capacity.figures import Bound, Capacity, StreamCapacity
from kcl_daemon.coverage import Unread, UnreadShard
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.telemetry.shards import ShardView
from kcl_daemon.telemetry.snapshot import HoldView, LeaseView, Snapshot, WorkerView
from tests.unit.admin.stage import CHILD, READING, SNAPSHOT, lease

AT_MS: Final = 1_795_176_231_000
WORKER: Final = "ip-10-20-30-40.eu-west-1.compute.internal-0123456789ab"
GONE: Final = (
    "GetShardIterator: ResourceNotFoundException: Stream arn:aws:kinesis:eu-west-1:123456789012:stream/orders-of-the-shop "
    "under account 123456789012 not found."
)
PAUSE: Final = "paused by anna@ops-1 since 12:00:05: the warehouse is migrated"
_TIP: Final = replace(
    READING, lag_s=0.3, behind_ms=0, waiting_records=0, uncheckpointed_s=4.0, p99_s=0.9, waits_s=0.2
)


def shard(number: int, like: ShardView = _TIP) -> ShardView:
    name = f"shardId-{number:012}"
    return replace(like, key=name, shard_id=name, parents=(), bytes_per_s=like.bytes_per_s + number)


def fleet(count: int, owner: str | None = WORKER) -> tuple[LeaseView, ...]:
    return tuple(lease(number, owner=owner) for number in range(count))


def capacity(sentence: str, *, wanted: int = 1, reason: str = "it keeps up", shards: int = 8) -> Capacity:
    whole = StreamCapacity(None, shards, None, None, None, Bound.UNKNOWN, reason, 0.0, 0.0)
    return Capacity(AT_MS, WorkerId(WORKER), 1, 0, wanted, reason, sentence, "", whole)


def worker(shards: Iterable[ShardView], leases: tuple[LeaseView, ...], **more: object) -> Snapshot:
    plain = replace(
        SNAPSHOT,
        worker_id=WORKER,
        leader=WORKER,
        shards=tuple(shards),
        fleet=leases,
        workers=(WorkerView(WORKER, len(leases), 12.0, 3.0),),
        moves=(),
        unread=(),
        at_ms=AT_MS,
        capacity=capacity("at the tip; 1 worker is enough"),
    )
    return replace(plain, **more)  # type: ignore[arg-type] # fields by name


def changing() -> Snapshot:
    """UpdateItem is refused: the leases name this worker, which can take none, and nothing is read."""
    why = f"worker {WORKER} has not renewed its lease for 9 min"
    unread = tuple(UnreadShard(each.key, Unread.SILENT.value, why, 540.0, owner=WORKER) for each in fleet(8))
    said = "it is not known how far behind: no worker tells of 8 shards: not read, or taken just now"
    workers = (WorkerView(WORKER, 8, None, None),)
    return worker(
        (),
        fleet(8),
        unread=unread,
        renewed_s=None,
        workers=workers,
        capacity=capacity(said, reason="not known"),
    )


def changing_follower() -> Snapshot:
    """The same for a worker that does not lead: it does not know what is unread."""
    return replace(changing(), unread=None, leads=False, leader=None, leaderless_s=400.0, capacity=None)


def deleted() -> Snapshot:
    """The stream of 64 shards is gone: their children are well, and nothing comes."""
    sick = replace(
        _TIP,
        detail=GONE,
        cause=WaitReason.KINESIS,
        stalled=True,
        waits_s=840.0,
        idle_s=840.0,
        lag_s=930.0,
        uncheckpointed_s=950.0,
        bytes_per_s=0.0,
    )
    why = "AWS refuses reads of shards 0-63, or does not answer"
    return worker(
        (shard(number, sick) for number in range(64)),
        fleet(64),
        unread=tuple(
            UnreadShard(each.key, Unread.STALLED.value, f"kinesis for 14 min ({GONE})", 840.0, owner=WORKER)
            for each in fleet(64)
        ),
        capacity=capacity(f"15 min behind; {why}", reason=why, shards=64),
    )


def failing() -> Snapshot:
    """A broken deploy: the children of all 64 shards end at once."""
    sick = replace(
        _TIP,
        cause=WaitReason.RESTART,
        waits_s=240.0,
        idle_s=240.0,
        lag_s=260.0,
        failures=12,
        next_try_s=20.0,
        last_error="the child ended with status 1 before it was ready",
        stderr_tail=("ModuleNotFoundError: No module named 'orders_v2'",),
        child=None,
    )
    why = "the children of shards 0-63 fail"
    said = capacity(f"4 min behind; {why}", reason=why, shards=64)
    return worker((shard(number, sick) for number in range(64)), fleet(64), capacity=said)


def paused() -> Snapshot:
    """One shard of eight is held back by a person, and is not late yet."""
    sick = replace(_TIP, cause=WaitReason.PAUSED, waits_s=48.0, lag_s=49.0, waiting_records=12, detail=PAUSE)
    hold = HoldView(PAUSE, True, None, "shardId-000000000005", "anna@ops-1", "", AT_MS, None, None, 0.0)
    unread = UnreadShard("shardId-000000000005", Unread.PAUSED.value, PAUSE, 48.0, owner=WORKER)
    shards = [shard(number, sick if number == 5 else _TIP) for number in range(8)]
    said = capacity("49 s behind, within the service level of 60 s; 1 worker is enough")
    return worker(shards, fleet(8), holds=(hold,), unread=(unread,), capacity=said)


def two_streams() -> Snapshot:
    """Two applications of one name, each with a stream of its own: half of the leases fit neither."""
    why = "its checkpoint is not of this shard: the leases are of another stream"
    sick = replace(
        _TIP,
        cause=WaitReason.KINESIS,
        stalled=True,
        waits_s=360.0,
        idle_s=360.0,
        lag_s=None,
        detail="GetShardIterator: InvalidArgumentException: StartingSequenceNumber used in GetShardIterator on shard "
        "shardId-000000000002 in stream orders under account 123456789012 is invalid.",
    )
    unread = tuple(
        UnreadShard(f"shardId-{number:012}", Unread.OTHER_STREAM.value, why, 360.0) for number in (1, 3)
    )
    leases = tuple(lease(number, owner=WORKER if number % 2 == 0 else "other-host") for number in range(4))
    workers = (WorkerView("other-host", 2, 20.0, 2.0), WorkerView(WORKER, 2, 12.0, 3.0))
    said = capacity(
        "it is not known how far behind: no worker tells of 2 shards", reason="not known", shards=4
    )
    shards = [shard(0), shard(2, sick)]
    return worker(shards, leases, unread=unread, workers=workers, capacity=said)


def letters_down() -> Snapshot:
    """Records that are set aside cannot be stored, so two shards stand."""
    sick = replace(
        _TIP,
        cause=WaitReason.LETTERS,
        stalled=True,
        waits_s=330.0,
        idle_s=330.0,
        lag_s=360.0,
        detail="sqs:orders-letters: AWS.SimpleQueueService.NonExistentQueue: The specified queue does not exist.",
    )
    why = "the letters of shards 3 and 6 cannot be stored"
    shards = [shard(number, sick if number in {3, 6} else _TIP) for number in range(8)]
    return worker(shards, fleet(8), capacity=capacity(f"6 min behind; {why}", reason=why))


def hanging() -> Snapshot:
    """A child has worked on one batch for too long."""
    sick = replace(
        _TIP,
        cause=WaitReason.CHILD,
        stalled=True,
        waits_s=660.0,
        idle_s=660.0,
        lag_s=690.0,
        waiting_records=4000,
        detail="processRecords, 500 records",
        child=replace(CHILD, stderr=("connecting to warehouse:5432",)),
    )
    why = "the child of shard 4 has worked on one action for too long"
    shards = [shard(number, sick if number == 4 else _TIP) for number in range(8)]
    return worker(shards, fleet(8), capacity=capacity(f"shard 4 is 11 min behind; {why}", reason=why))


SICK: Final[dict[str, Callable[[], Snapshot]]] = {
    "changing": changing,
    "changing-follower": changing_follower,
    "deleted": deleted,
    "failing": failing,
    "paused": paused,
    "two-streams": two_streams,
    "letters": letters_down,
    "hanging": hanging,
}
CAUSE: Final = {
    "changing": "has not renewed its lease",
    "changing-follower": "holds 0 of the 8 leases",
    "deleted": "ResourceNotFoundException",
    "failing": "ModuleNotFoundError",
    "paused": "paused by anna@ops-1",
    "two-streams": "the leases are of another stream",
    "letters": "NonExistentQueue",
    "hanging": "child for 11 min",
}
"""The words that must stand on the first screen."""
READY: Final = frozenset({"changing-follower", "paused"})
"""Those whose worker is ready all the same."""
