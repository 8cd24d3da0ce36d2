"""Which sentence is said of which fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon.capacity.estimate import estimate
from kcl_daemon.capacity.figures import Bound, Capacity, CapacityTargets, FleetState, ShardLoad, WorkerLoad
from kcl_daemon.capacity.words import clock, nth
from kcl_daemon.leases.lease import LeaseKey, WorkerId

NOW_MS = 1_790_000_000_000  # 14:13:20 UTC
KIB = 1024.0
TARGETS = CapacityTargets()


def key(number: int) -> LeaseKey:
    return LeaseKey(f"shardId-{number:012d}")


def shard(number: int, behind_s: float | None = 0.0, speed: float | None = 1.0, bound: Bound = Bound.NOTHING,
          rate: float = 100 * KIB) -> ShardLoad:  # fmt: skip
    return ShardLoad(key(number), behind_s, speed, rate, rate, 0.9, bound)


def fleet(*shards: ShardLoad, workers: int = 2, cpu: float | None = 0.3, silent: int = 0, quiet_s: float = 0.0,
          leases: int | None = None) -> FleetState:  # fmt: skip
    loads = tuple(
        WorkerLoad(WorkerId(f"w{each}"), NOW_MS, cpu, shards[each::workers], quiet_s=quiet_s)
        for each in range(workers)
    )
    count = len(shards) if leases is None else leases
    return FleetState(NOW_MS, loads, {key(number): None for number in range(count)}, workers + silent, silent)


def eight(behind_s: float | None, speed: float | None, bound: Bound) -> list[ShardLoad]:
    return [shard(number, behind_s, speed, bound) for number in range(8)]


def found(
    state: FleetState, targets: CapacityTargets = TARGETS, previous: Capacity | None = None
) -> Capacity:
    return estimate(state, targets, previous, by=WorkerId("w0"))


HOST = eight(840, 3.1, Bound.HOST_CPU)
ITSELF = "each of the 8 shards is held back by itself: its child works all the time (8 shards)"
SENTENCES = {
    "one more worker helps": (
        fleet(*HOST, cpu=0.97),
        "14 min behind, draining at 3.1 x, done at 14:19; a third worker makes it 4 min; a ninth nothing, there are 8 shards",
    ),
    "at the tip": (fleet(*eight(0.4, 1.0, Bound.NOTHING), cpu=0.55), "at the tip; 2 workers are enough"),
    "one is enough": (fleet(*eight(0.4, 1.0, Bound.NOTHING), workers=1), "at the tip; 1 worker is enough"),
    "too many": (fleet(*eight(0.4, 1.0, Bound.NOTHING), workers=3), "at the tip; 3 workers, 2 would be enough"),
    "soon too few": (
        fleet(*eight(0.4, 1.0, Bound.NOTHING), cpu=0.85),
        "at the tip; 2 workers, 3 are wanted: keeps pace with what comes in at 70% CPU",
    ),
    "within the level": (
        fleet(*eight(30, 1.0, Bound.NOTHING), cpu=0.6),
        "30 s behind, within the service level of 60 s; 2 workers are enough",
    ),
    "falling behind": (
        fleet(*eight(840, 0.5, Bound.HOST_CPU), cpu=0.97),
        ("14 min behind and falling further behind at 0.5 x; it will not catch up like this; "
        "an eighth worker would do it in 13 min; a ninth nothing, there are 8 shards"),
    ),
    "children too slow": (
        fleet(*eight(840, 0.5, Bound.CHILD)),
        ("14 min behind and falling further behind at 0.5 x; it will not catch up like this; "
        f"more workers do not help: {ITSELF}"),
    ),
    "children catch up": (
        fleet(*eight(840, 2.0, Bound.CHILD)),
        f"14 min behind, draining at 2.0 x, done at 14:26; more workers do not help: {ITSELF}",
    ),
    "keeps pace": (
        fleet(*eight(840, 1.0, Bound.CHILD)),
        f"14 min behind; it keeps pace, but does not catch up; more workers do not help: {ITSELF}",
    ),
    "days": (
        fleet(*eight(86_400, 1.2, Bound.READ_QUOTA)),
        ("24 h behind, draining at 1.2 x, done in 5 d; more workers do not help: each of the 8 shards is held back by itself: "
        "Kinesis gives 2 MiB a second (8 shards)"),
    ),
    "one hot shard": (
        fleet(shard(0, 840, 0.7, Bound.CHILD), *(shard(number) for number in range(1, 8))),
        ("shard 0 is 14 min behind and falling further behind at 0.7 x; it will not catch up like this; the other 7 keep up; "
        "more workers do not help: the child of shard 0 works all the time, and its host has CPU left"),
    ),
    "one hot key": (
        fleet(shard(0, 840, 2.0, Bound.HOT_KEY), shard(1), shard(2), shard(3)),
        ("shard 0 is 14 min behind, draining at 2.0 x, done at 14:26; the other 3 keep up; "
        "more workers do not help: one partition key of shard 0 holds back the others"),
    ),
    "paused": (
        fleet(*eight(840, None, Bound.PAUSE)),
        "14 min behind; paused: shards 0, 1, 2, 3, 4 and 3 more; more workers do not help",
    ),
    "slowed down": (
        fleet(shard(0, 840, 0.5, Bound.LIMIT), workers=1),
        "14 min behind; slowed down by a limit: shard 0; more workers do not help",
    ),
    "downstream": (
        fleet(shard(0, 840, None, Bound.DOWNSTREAM), workers=1),
        "14 min behind; the child of shard 0 has asked for a pause, or its letters cannot be stored; more workers do not help",
    ),
    "failing": (
        fleet(shard(0, 840, None, Bound.FAILING), workers=1),
        "14 min behind; the children of shard 0 fail; more workers do not help",
    ),
    "a worker for each lease": (
        fleet(*eight(840, 3.1, Bound.HOST_CPU), workers=8, cpu=0.97),
        ("14 min behind, draining at 3.1 x, done at 14:19; more workers do not help: each shard has a worker to itself, and the "
        "CPU of the host of shards 0, 1, 2, 3, 4 and 3 more is used up"),
    ),
    "Java beside": (
        fleet(*eight(0.4, 1.0, Bound.NOTHING), silent=1, leases=10),
        "what is known is at the tip; 3 workers; 1 worker of 3 tells nothing: Java, or an older version",
    ),
    "nobody tells": (
        FleetState(NOW_MS, (), {key(0): None}, 1, 1),
        "it is not known how far behind: 1 worker of 1 tells nothing: Java, or an older version",
    ),
    "not known yet": (
        fleet(shard(0, None, None, Bound.UNKNOWN), workers=1),
        "it is not known how far behind: shard 0: nothing was finished yet",
    ),
    "refused, and never read": (
        fleet(shard(0, None, None, Bound.REFUSED), shard(1, None, None, Bound.UNKNOWN)),
        "it is not known how far behind: AWS refuses reads of shard 0, or does not answer; shard 1: nothing was finished yet",
    ),
    "one is refused, and never read": (
        fleet(shard(0, None, None, Bound.REFUSED), shard(1)),
        "what is known is at the tip; 2 workers; AWS refuses reads of shard 0, or does not answer",
    ),
    "no shards": (fleet(workers=1), "there are no shards to read"),
    "nobody reads two": (
        fleet(*eight(0.4, 1.0, Bound.NOTHING), leases=10),
        "what is known is at the tip; 2 workers; no worker tells of 2 shards: not read, or taken just now",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentence_follows_from_the_estimate(name: str) -> None:
    state, sentence = SENTENCES[name]
    assert found(state).sentence == sentence


def test_no_worker_is_wanted_for_a_quiet_stream_with_scale_to_zero() -> None:
    quiet = fleet(*eight(0.0, None, Bound.NOTHING), quiet_s=700)
    zero = CapacityTargets(scale_to_zero=True)
    assert (found(quiet, zero).wanted, found(quiet).wanted) == (0, 2)
    assert (
        found(quiet, zero).sentence
        == "at the tip; 2 workers, none is needed: nothing was finished for 10 min"
    )


@pytest.mark.parametrize(
    "spoilt",
    [
        fleet(*eight(0.0, None, Bound.NOTHING), quiet_s=500),
        fleet(*eight(0.0, None, Bound.PAUSE), quiet_s=700),
        fleet(*eight(None, None, Bound.UNKNOWN), quiet_s=700),
        fleet(*eight(90.0, None, Bound.CHILD), quiet_s=700),
        fleet(*eight(0.0, None, Bound.NOTHING), quiet_s=700, silent=1),
        fleet(*eight(0.0, None, Bound.NOTHING), quiet_s=700, leases=9),
        FleetState(NOW_MS, (), {key(0): None}, 0, 0),
    ],
)
def test_zero_needs_to_be_sure(spoilt: FleetState) -> None:
    assert found(spoilt, CapacityTargets(scale_to_zero=True)).wanted > 0


def test_streams_are_told_apart() -> None:
    one, two = "1:orders:1", "1:clicks:1"
    late = replace(shard(0, 840, 2.0, Bound.CHILD), key=LeaseKey(f"{one}:shardId-000000000000"))
    early = replace(shard(0), key=LeaseKey(f"{two}:shardId-000000000000"))
    state = replace(fleet(late, early), leases={late.key: one, early.key: two})
    capacity = found(state)
    assert [(each.stream, each.behind_s, each.drains_s) for each in capacity.streams] == [
        (two, 0.0, 0.0),
        (one, 840, 780.0),
    ]
    assert (capacity.whole.behind_s, capacity.whole.drains_s, capacity.whole.binds) == (
        840,
        780.0,
        Bound.CHILD,
    )


def test_cpu_that_one_shard_of_a_full_host_no_longer_needs_another_gets() -> None:
    far, near = shard(0, 600, 1.2, Bound.HOST_CPU), shard(1, 120, 1.2, Bound.HOST_CPU)
    capacity = found(fleet(far, near, workers=1, cpu=0.97))
    assert capacity.whole.drains_s == pytest.approx((540 + 60) / 1.2 / 0.2 * 1.2 / 2)


def test_the_speed_is_that_of_more_than_one_report() -> None:
    first = found(fleet(*eight(840, 2.0, Bound.CHILD)))
    later = replace(fleet(*eight(800, 3.0, Bound.CHILD)), now_ms=NOW_MS + 30_000)
    assert found(later, previous=first).whole.speed == pytest.approx(2.5)
    other = replace(fleet(*eight(800, 3.0, Bound.CHILD), workers=3), now_ms=NOW_MS + 30_000)
    assert found(other, previous=first).whole.speed == pytest.approx(3.0)


def test_the_unknown_is_named() -> None:
    assert (
        found(fleet(*eight(0.4, 1.0, Bound.NOTHING), cpu=None)).unknown
        == "the CPU of 2 workers is not measured"
    )


def test_alternatives_reach_from_one_fewer_to_the_number_of_leases() -> None:
    numbers = [each.workers for each in found(fleet(*HOST, cpu=0.97)).alternatives]
    assert numbers == [1, 3, 4, 5, 6, 7, 8]
    assert found(fleet(*HOST, cpu=0.97)).alternatives[1].words == "3 workers: done in 4 min"


def test_ordinals_and_times_of_day() -> None:
    words = [nth(each) for each in (1, 2, 8, 11, 18, 19, 21, 22, 80, 111, 113)]
    assert words == [
        *(
            "a first",
            "a second",
            "an eighth",
            "an eleventh",
            "an eighteenth",
            "a 19th",
            "a 21st",
            "a 22nd",
            "an 80th",
        ),
        *("a 111th", "a 113th"),
    ]
    assert (clock(NOW_MS), clock(0), clock(86_399_999)) == ("14:13", "00:00", "23:59")
