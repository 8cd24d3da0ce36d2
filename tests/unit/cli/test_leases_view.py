"""What `kcl-daemon leases` prints, from values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import pytest

from kcl_daemon.cli.common import aligned
from kcl_daemon.cli.leases.command import explain_seen, of_stream
from kcl_daemon.cli.leases.look import LeaderView, LeaseLag, ObservedFleet, UnreadableRow
from kcl_daemon.cli.leases.show import (
    explain_json,
    explain_lines,
    is_any_unread,
    list_json,
    list_lines,
    reset_words,
    shortened,
)
from kcl_daemon.config.balance import AssignmentStrategy, BalanceSettings, ShardSettings
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.coverage import ShardCoverage, Unread
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.text import duration
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.cli.leases_stage import (
    ENDED,
    FLEET,
    FREE,
    HELD,
    KEYS,
    MOVING,
    NOW_S,
    NUMBER,
    ONE,
    ORPHAN,
    TWO,
    abandoned,
    seen,
)

SETTINGS = Settings("billing", "orders", ChildSettings(("true",)), "observer")
BY_COUNT = replace(SETTINGS, balance=BalanceSettings(strategy=AssignmentStrategy.LEASE_COUNT_BASED))

LISTED = """\
application billing, stream orders; layout separate: billing, billing-WorkerMetricStats, billing-CoordinatorState

shard                 owner  handoff to  checkpoint               counter  switches  throughput
shardId-000000000001  w-1    -           496599...000000123456/3      412         0  12.3 KiB/s
shardId-000000000002  w-1    w-2         496599...000000123456          7         0           -
shardId-000000000003  -      -           TRIM_HORIZON                   2         0           -
shardId-000000000004  w-old  -           TRIM_HORIZON                   5         4           -

worker  state   last report     cpu  leases
w-1     alive       4 s ago    12 %       2  leader
w-2     silent    7 min ago  failed       0
w-old   no row            -       -       1

5 leases: 3 with an owner, 1 without, 1 in handoff, 1 finished (shown with --all); 3 workers, 1 alive; leader: w-1"""


def lines(state: ObservedFleet, *, with_finished: bool = False) -> str:
    return "\n".join(list_lines(state, with_finished=with_finished))


def document(state: ObservedFleet, *, with_finished: bool = False) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(list_json(state, with_finished=with_finished))
    return loaded


def by_lease(state: ObservedFleet, *, with_finished: bool = False) -> dict[str, dict[str, Any]]:
    return {each["lease"]: each for each in document(state, with_finished=with_finished)["leases"]}


def test_the_list_is_an_aligned_table_of_leases_and_workers() -> None:
    assert lines(seen()) == LISTED


def test_finished_leases_are_shown_when_asked_for() -> None:
    text = lines(seen(), with_finished=True)
    assert f"{ENDED}  -      -           SHARD_END" in text
    assert "1 finished;" in text


def test_lags_have_a_column_when_they_were_asked_for() -> None:
    lags = {HELD: LeaseLag(85), MOVING: LeaseLag(7_400_000), FREE: LeaseLag(None, "throttled")}
    rows = lines(seen(lags=lags)).splitlines()
    assert rows[2].endswith("lag")
    assert [row.split("  ")[-1].strip() for row in rows[3:7]] == ["85 ms", "2 h", "throttled", "-"]


@pytest.mark.parametrize(
    ("leader", "said"),
    [
        (None, "leader: none; the next worker"),
        (LeaderView(TWO, 30.0, released=True, silent_s=0.0), "leader: none, w-2 released the lock"),
        (
            LeaderView(TWO, 30.0, released=False, silent_s=31.0),
            "w-2, but its lock was not renewed for 31.0 s",
        ),
    ],
)
def test_a_lock_out_of_force_makes_nobody_leader(leader: LeaderView | None, said: str) -> None:
    text = lines(seen(leader=leader))
    assert said in text
    assert "leader\n" not in text


def test_a_row_that_cannot_be_read_is_shown_with_its_problem() -> None:
    row = UnreadableRow("billing", "odd\x1b[2J", "leaseOwner should be a string, found {}")
    text = lines(seen(unreadable=(row,)))
    assert r"unreadable row odd\x1b[2J of table billing: leaseOwner should be a string" in text
    assert "repair or delete" in text


def test_nothing_from_a_table_can_steer_the_terminal() -> None:
    hostile = Lease(LeaseKey("a\nb"), 1, TRIM_HORIZON, lease_owner=WorkerId("\x1b[31mw"))
    state = seen(fleet=replace(FLEET, leases=[hostile]))
    shown = [*list_lines(state, with_finished=True), *explain_lines(explain_seen(state, SETTINGS))]
    assert all(line.isprintable() for line in shown)


def test_shards_that_nobody_reads_are_named_by_cause() -> None:
    covered = {
        each.key: each
        for each in (
            ShardCoverage(HELD, ONE),
            ShardCoverage(FREE, None, Unread.NO_OWNER, "no worker has its lease"),
            ShardCoverage(MOVING, TWO, Unread.PAUSED, "ann has paused it: a\x1b[2J bill"),
        )
    }
    state = replace(seen(), covered=covered)
    text = lines(state)
    assert "nobody reads shard 3: no worker has its lease (no owner)\n" in text
    assert "nobody reads shard 2: ann has paused it: a\\x1b[2J bill (paused)\n" in text
    assert "kcl-daemon watch" in text
    told = {name: each["unread"] for name, each in by_lease(state).items()}
    assert told == {HELD: None, FREE: "no owner", MOVING: "paused", ORPHAN: None}
    assert is_any_unread(state)
    assert not is_any_unread(replace(state, covered={HELD: covered[HELD]}))
    broken = ShardCoverage(LeaseKey("odd"), None, Unread.UNREADABLE, "the row of its lease cannot be read")
    assert is_any_unread(replace(state, covered={broken.key: broken}))


def test_an_application_without_leases_and_workers_says_so() -> None:
    empty = replace(FLEET, leases=(), workers=frozenset(), stats={})
    text = lines(seen(fleet=empty, leader=None))
    assert "no leases to show" in text
    assert "no workers" in text


def test_json_holds_every_value_in_full() -> None:
    held = by_lease(seen(lags={HELD: LeaseLag(85), MOVING: LeaseLag(None, "throttled")}))[HELD]
    assert held == {
        "lease": HELD,
        "owner": "w-1",
        "handoff_to": None,
        "abandoned": None,
        "finished": False,
        "paused": False,
        "degraded_by": None,
        "unread": None,
        "checkpoint": NUMBER,
        "sub_sequence_number": 3,
        "pending_checkpoint": None,
        "counter": 412,
        "owner_switches_since_checkpoint": 0,
        "throughput_kib_per_s": 12.34,
        "lag_ms": 85,
        "lag_unknown_because": None,
        "parents": [],
        "children": [],
        "hash_range": None,
    }


def test_json_tells_hand_offs_lineage_and_hashes() -> None:
    found = by_lease(seen(lags={MOVING: LeaseLag(None, "throttled")}), with_finished=True)
    assert tuple(found) == KEYS
    assert (found[MOVING]["owner"], found[MOVING]["handoff_to"]) == ("w-1", "w-2")
    assert (found[MOVING]["lag_ms"], found[MOVING]["lag_unknown_because"]) == (None, "throttled")
    assert found[ENDED]["children"] == [HELD, FREE]
    assert found[FREE]["hash_range"] == ["0", str(2**127)]
    assert found[FREE]["parents"] == [ENDED]


def test_json_of_the_application_around_the_leases() -> None:
    reported = document(seen())
    assert reported["schema"] == 1
    assert reported["leader"] == {
        "worker": "w-1",
        "leads": True,
        "released": False,
        "lease_s": 30.0,
        "silent_s": 0.0,
    }
    assert reported["summary"] == {
        "leases": 5,
        "owned": 3,
        "unowned": 1,
        "abandoned": None,
        "handing_off": 1,
        "finished": 1,
    }
    assert [each["worker"] for each in reported["workers"]] == ["w-1", "w-2", "w-old"]
    assert reported["workers"][1] == {
        "worker": "w-2",
        "alive": False,
        "leader": False,
        "leases": 0,
        "last_report_s": 1_769_999_600,
        "report_age_s": 400.0,
        "cpu_percent": None,
        "cpu_failed": True,
    }


def test_whether_a_lease_is_abandoned_is_known_only_after_enough_watching() -> None:
    one_look, watched = seen(), seen(fleet=abandoned(ORPHAN), watched_s=14.0)
    assert {each["abandoned"] for each in by_lease(one_look).values()} == {None}
    assert by_lease(watched)[ORPHAN]["abandoned"] is True
    assert by_lease(watched)[HELD]["abandoned"] is False
    assert document(watched)["summary"]["abandoned"] == 1


def test_explain_shows_each_move_with_its_reason_and_the_limits_of_one_look() -> None:
    text = "\n".join(explain_lines(explain_seen(seen(), SETTINGS)))
    assert f"take: {FREE}: nobody -> w-1, it had no owner" in text
    assert "at its next check: 1 of these moves" in text
    assert "note: a single check cannot show which owners are silent" in text
    assert "use --watch 14" in text
    assert "leader: w-1" in text


def test_explain_after_enough_watching_takes_from_the_silent_and_has_no_note() -> None:
    text = "\n".join(explain_lines(explain_seen(seen(fleet=abandoned(ORPHAN), watched_s=14.0), SETTINGS)))
    assert f"take: {ORPHAN}: w-old -> w-1, its owner is silent" in text
    assert "note:" not in text


def test_watching_for_less_than_the_fail_over_time_is_reported_to_be_too_short() -> None:
    text = "\n".join(explain_lines(explain_seen(seen(watched_s=4.0), SETTINGS)))
    assert "4 s of watching cannot show" in text


def test_explain_of_a_fleet_that_has_died_says_that_nobody_works() -> None:
    dead = replace(FLEET, workers=frozenset(), abandoned=frozenset({HELD, MOVING, ORPHAN}))
    text = "\n".join(explain_lines(explain_seen(seen(fleet=dead, watched_s=14.0), SETTINGS)))
    assert "note: no worker is alive" in text


def uneven() -> ObservedFleet:
    """One worker has everything, another has just come."""
    leases = [Lease(key, 3, TRIM_HORIZON, lease_owner=ONE, throughput_kbps=100.0) for key in KEYS]
    both = {ONE: FLEET.stats[ONE], TWO: replace(FLEET.stats[ONE], worker_id=TWO)}
    return seen(fleet=replace(FLEET, leases=leases, workers=frozenset(both), stats=both), watched_s=14.0)


def test_explain_tells_balancing_from_what_happens_at_once() -> None:
    explained = explain_seen(uneven(), SETTINGS)
    moves = json.loads(explain_json(explained))["moves"]
    assert moves
    assert {(each["from"], each["to"], each["how"], each["when"]) for each in moves} == {
        ("w-1", "w-2", "hand off", "next balancing")
    }
    assert f"at the next balancing: {len(moves)} of these moves" in "\n".join(explain_lines(explained))


def test_explain_follows_the_strategy_of_the_file() -> None:
    explained = explain_seen(uneven(), BY_COUNT)
    assert {each["when"] for each in json.loads(explain_json(explained))["moves"]} == {"next look"}


def test_explain_leaves_out_leases_that_wait_for_parents_as_the_leader_does() -> None:
    parent = Lease(ENDED, 90, TRIM_HORIZON, lease_owner=ONE)
    child = Lease(FREE, 2, TRIM_HORIZON, parent_shard_ids=frozenset({ShardId(ENDED)}))
    waiting = seen(fleet=replace(FLEET, leases=[child, parent]))
    settings = replace(SETTINGS, shards=ShardSettings(waiting_generations_most=0))
    explained = explain_seen(waiting, settings)
    assert not explained.plan.moves
    assert waiting.leases == explained.seen.leases
    assert [move.lease.lease_key for move in explain_seen(waiting, SETTINGS).plan.moves] == [FREE]


def test_explain_of_a_fleet_at_rest_moves_nothing() -> None:
    at_rest = replace(FLEET, leases=[lease for lease in FLEET.leases if lease.lease_key == HELD])
    text = "\n".join(explain_lines(explain_seen(seen(fleet=at_rest), SETTINGS)))
    assert "nothing to move" in text
    assert "at its next check" not in text


@pytest.mark.parametrize(
    ("checkpoint", "shown"),
    [
        (ExtendedSequenceNumber(NUMBER), "496599...000000123456"),
        (ExtendedSequenceNumber(NUMBER, 7), "496599...000000123456/7"),
        (ExtendedSequenceNumber("123456"), "123456"),
        (LATEST, "LATEST"),
    ],
)
def test_long_checkpoints_lose_their_middle(checkpoint: ExtendedSequenceNumber, shown: str) -> None:
    assert shortened(checkpoint) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0 ms"), (0.085, "85 ms"), (12.5, "12.5 s"), (150, "2 min"), (7400, "2 h"), (864_000, "10 d")],
)
def test_durations_have_one_unit(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    table = aligned(("name", "n"), [("a", "1"), ("longer", "100")], frozenset({1}))
    assert table == ["name      n", "a         1", "longer  100"]


def test_a_stream_that_the_application_does_not_have_is_reported() -> None:
    assert len(of_stream(seen(), SETTINGS, "orders").leases) == len(KEYS)
    assert of_stream(replace(seen(), fleet=replace(FLEET, leases=())), SETTINGS, "orders").leases == ()
    with pytest.raises(click.BadParameter, match="this application has no stream nope; it reads orders"):
        of_stream(seen(), SETTINGS, "nope")


def test_one_lease_and_one_worker_are_one() -> None:
    few = replace(FLEET, leases=[FLEET.leases[2]], stats={ONE: FLEET.stats[ONE]})
    text = "\n".join(list_lines(seen(fleet=few), with_finished=False))
    assert "1 lease: 1 with an owner" in text
    assert "1 worker, 1 alive" in text


HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("position", "behind", "said"),
    [
        (
            InitialPosition(StartAt.TRIM_HORIZON),
            (0, 5000),
            ["all that the stream still holds comes again, from 2 shards"],
        ),
        (InitialPosition(StartAt.LATEST), (0, 200), []),
        (
            InitialPosition(StartAt.LATEST),
            (0, 7_200_000),
            ["records that were not processed yet are skipped, of up to 2 h"],
        ),
        (
            InitialPosition(StartAt.TIMESTAMP, NOW_S - 26 * HOUR_S),
            (0, 3_600_000),
            ["records of up to 26 h come again"],
        ),
        (
            InitialPosition(StartAt.TIMESTAMP, NOW_S - HOUR_S),
            (0, 7_200_000),
            [
                "records of up to 60 min come again",
                "records that were not processed yet are skipped, of up to 60 min",
            ],
        ),
        (InitialPosition(StartAt.LATEST), (None, None), ["how far behind 2 shards is, is not known"]),
    ],
)
def test_a_reset_says_what_it_does_to_the_records(
    position: InitialPosition, behind: tuple[int | None, ...], said: list[str]
) -> None:
    lags = [LeaseLag(each, "" if each is not None else "throttled") for each in behind]
    assert list(reset_words(position, lags, now_s=NOW_S)) == said
