"""The rules of lease rows, of the leader row and of progress: each can be broken, and says so."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from itertools import pairwise

import anyio
import pytest

from kcl_daemon.leases.row import Row, Value
from kcl_daemon.records.dead_letter import LetterCause
from kcl_protocol.messages import Record
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.faults.ports import RowWrite
from tests.simulator.loop import current_loop, run_virtual
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.rules.leader import LeaderRules
from tests.simulator.rules.liveness import Liveness
from tests.simulator.rules.progress import ProgressRules
from tests.simulator.rules.rows import LeaseTableRules
from tests.simulator.rules.truth import Truth
from tests.simulator.trace import Trace
from tests.simulator.violation import Violation
from tests.unit.simulator.helpers import violation_in, violation_while

PARENT, CHILD = "parent", "child"


def row(**changes: Value | None) -> Row:
    """A good lease row of worker `a` with some attributes changed; None: taken away."""
    attributes: dict[str, Value | None] = {
        "leaseKey": PARENT,
        "leaseCounter": 5,
        "leaseOwner": "a",
        "ownerSwitchesSinceCheckpoint": 1,
        "checkpoint": "12",
        "checkpointSubSequenceNumber": 0,
        **changes,
    }
    return {name: value for name, value in attributes.items() if value is not None}


class Scene:
    """A stream of two generations, a lease table and its rules."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.truth.shard_created(PARENT, ())
        self.truth.shard_created(CHILD, (PARENT,))
        for number in (11, 12, 13):
            self.truth.record_written(PARENT, number, 0.0, "", "k")
        self.rules = LeaseTableRules("leases", self.truth, lease_s=10.0)
        self.trace = Trace()
        self.deliveries = Deliveries(self.truth, self.rules, self.trace)
        self.rules.asked = self.deliveries
        self.living = ["a"]
        self.liveness = Liveness(
            truth=self.truth,
            rules=self.rules,
            deliveries=self.deliveries,
            living=lambda: self.living,
            bound_s=60.0,
        )

    def write(self, before: Row | None, after: Row | None, *, by: str = "a", at_s: float = 100.0) -> None:
        self.rules.row_written(RowWrite(at_s, by, "leases", PARENT, before, after))

    def asked_for(self, position: ExtendedSequenceNumber) -> None:
        self.deliveries.asked(self.deliveries.started(PARENT, "a"), position)

    def deliver_all(self) -> None:
        child = self.deliveries.started(PARENT, "a")
        if PARENT not in self.rules.rows:
            self.rules.restore(PARENT, row())
        self.deliveries.initialized(child, TRIM_HORIZON)
        self.deliveries.delivered(child, [Record("", "k", str(number)) for number in (11, 12, 13)])


def violation_of(before: Row | None, after: Row | None, *, by: str = "a") -> str | None:
    def action() -> None:
        scene = Scene()
        scene.asked_for(ExtendedSequenceNumber("13"))
        scene.write(before, after, by=by)

    return violation_in(action)


RENEWED = row(leaseCounter=6)
CHECKPOINTED = row(leaseCounter=6, checkpoint="13", ownerSwitchesSinceCheckpoint=0)
HANDING_OFF = row(leaseOwner="b", checkpointOwner="a")
FRESH = row(leaseCounter=0, leaseOwner=None, ownerSwitchesSinceCheckpoint=0, checkpoint="LATEST")


@pytest.mark.parametrize(
    ("before", "after", "by"),
    [
        (row(), RENEWED, "a"),
        (row(), CHECKPOINTED, "a"),
        (row(), HANDING_OFF, "leader"),
        (HANDING_OFF, row(leaseOwner="b", leaseCounter=6), "a"),
        (HANDING_OFF, {**CHECKPOINTED, "leaseOwner": "b", "checkpointOwner": "a"}, "a"),
        (row(), row(leaseCounter=6, leaseOwner=None), "a"),
        (row(), row(leaseCounter=6, leaseOwner="b", ownerSwitchesSinceCheckpoint=2), "leader"),
        (row(), row(childShardIds=frozenset({"x"})), "a"),
        (row(strange="kept"), row(strange="kept", leaseCounter=6), "a"),
        (None, FRESH, "a"),
    ],
)
def test_a_write_of_kcl_breaks_no_rule(before: Row | None, after: Row | None, by: str) -> None:
    assert violation_of(before, after, by=by) is None


@pytest.mark.parametrize(
    ("before", "after", "by", "violation"),
    [
        (row(), row(leaseCounter=6, leaseOwner=""), "a", "malformed_row"),
        (row(), row(leaseCounter=None), "a", "malformed_row"),
        (row(), row(leaseCounter="6"), "a", "malformed_row"),
        (row(), row(leaseCounter=6, leaseOwner=7), "a", "malformed_row"),
        (row(), row(leaseCounter=6, checkpoint="abc"), "a", "malformed_row"),
        (row(), row(leaseCounter=6, parentShardId=frozenset()), "a", "malformed_row"),
        (row(strange="kept"), RENEWED, "a", "strange_attributes"),
        (row(), {**RENEWED, "strange": "new"}, "a", "strange_attributes"),
        (row(), row(leaseCounter=6, checkpoint="11"), "a", "checkpoint_backwards"),
        (row(), CHECKPOINTED, "b", "checkpoint_by_stranger"),
        (
            HANDING_OFF,
            {**CHECKPOINTED, "leaseOwner": "b", "checkpointOwner": "a"},
            "b",
            "checkpoint_by_stranger",
        ),
        (row(), {**CHECKPOINTED, "checkpoint": "14"}, "a", "checkpoint_never_asked"),
        (row(), {**CHECKPOINTED, "checkpoint": "SHARD_END"}, "a", "shard_end_too_early"),
        (row(), row(leaseCounter=4), "a", "counter"),
        (row(), row(leaseCounter=8), "a", "counter"),
        (row(), {**CHECKPOINTED, "leaseCounter": 5}, "a", "counter"),
        (row(), row(leaseOwner="b"), "leader", "counter"),
        (row(), {**CHECKPOINTED, "ownerSwitchesSinceCheckpoint": 1}, "a", "owner_switches"),
        (row(), row(leaseCounter=6, ownerSwitchesSinceCheckpoint=9), "a", "owner_switches"),
        (row(), None, "leader", "deleted_unfinished"),
        (None, row(leaseOwner=None), "leader", "created_ahead"),
        (None, row(checkpoint="LATEST"), "leader", "malformed_row"),
    ],
)
def test_each_rule_of_lease_rows_can_be_broken(
    before: Row | None, after: Row | None, by: str, violation: str
) -> None:
    assert violation_of(before, after, by=by) == violation


@pytest.mark.parametrize(
    ("by", "before", "after_s", "violation"),
    [
        ("leader", RENEWED, 9.9, "taken_early"),
        ("leader", RENEWED, 10.1, None),
        ("a", RENEWED, 1.0, None),
        ("leader", {**RENEWED, "leaseOwner": "b", "checkpointOwner": "a"}, 1.0, None),
    ],
)
def test_a_lease_is_taken_from_its_holder_only_after_it_has_stood_still(
    by: str, before: Row, after_s: float, violation: str | None
) -> None:
    def action() -> None:
        scene = Scene()
        scene.write(row(), RENEWED, at_s=100.0)
        taken = row(leaseCounter=7, leaseOwner="b", ownerSwitchesSinceCheckpoint=2)
        scene.write(before, taken, by=by, at_s=100.0 + after_s)

    assert violation_in(action) == violation


@pytest.mark.parametrize(
    ("by", "still_s", "after_s", "violation"),
    [
        ("java-1", 11.0, 59.0, None),
        ("java-1", 11.0, 61.0, "taken_early"),
        ("java-1", 9.0, 1.0, "taken_early"),
        ("leader", 11.0, 1.0, "taken_early"),
    ],
)
def test_a_java_leader_may_write_what_an_old_read_asked_for(
    by: str, still_s: float, after_s: float, violation: str | None
) -> None:
    def action() -> None:
        scene = Scene()
        scene.rules.is_java = "java-1".__eq__
        scene.write(row(), RENEWED, at_s=100.0)
        rows = [RENEWED, *({**RENEWED, "leaseCounter": 7 + number} for number in range(8))]
        back_s = 100.0 + still_s
        for number, (before, after) in enumerate(pairwise(rows)):
            scene.write(before, after, at_s=back_s + number * after_s / 8)
        taken = row(leaseCounter=15, leaseOwner="b", ownerSwitchesSinceCheckpoint=2)
        scene.write(rows[-1], taken, by=by, at_s=back_s + after_s)

    assert violation_in(action) == violation


def test_a_lease_for_a_shard_that_is_not_there_is_a_violation() -> None:
    def action() -> None:
        write = RowWrite(0.0, "a", "leases", "x", None, {**FRESH, "leaseKey": "x"})
        Scene().rules.row_written(write)

    assert violation_in(action) == "unknown_shard"


@pytest.mark.parametrize(("after_s", "violation"), [(14.0, None), (16.0, "created_for_gone")])
def test_no_lease_is_created_for_a_stream_that_is_gone_for_long(
    after_s: float, violation: str | None
) -> None:
    def action() -> None:
        scene = Scene()
        scene.truth.stream_deleted(PARENT, 100.0)
        scene.write(None, FRESH, at_s=100.0 + after_s)

    assert violation_in(action) == violation


@pytest.mark.parametrize(
    ("is_closed", "is_delivered", "violation"),
    [
        (True, True, None),
        (False, True, "shard_end_too_early"),
        (True, False, "shard_end_too_early"),
    ],
)
def test_a_shard_is_finished_only_after_all_of_it_was_delivered(
    is_closed: bool, is_delivered: bool, violation: str | None
) -> None:
    def action() -> None:
        scene = Scene()
        if is_closed:
            scene.truth.shard_closed(PARENT)
        if is_delivered:
            scene.deliver_all()
        scene.asked_for(SHARD_END)
        scene.write(row(), {**CHECKPOINTED, "checkpoint": "SHARD_END"})

    assert violation_in(action) == violation


@pytest.mark.parametrize(
    ("parent_row", "is_delivered", "violation"),
    [
        (row(checkpoint="SHARD_END"), True, None),
        (None, True, None),
        (row(), True, "child_before_parent"),
        (row(checkpoint="SHARD_END"), False, "child_before_parent"),
    ],
)
def test_no_record_of_a_child_shard_comes_before_its_parent_is_finished(
    parent_row: Row | None, is_delivered: bool, violation: str | None
) -> None:
    def action() -> None:
        scene = Scene()
        if is_delivered:
            scene.deliver_all()
        scene.truth.shard_closed(PARENT)
        scene.rules.views.clear()
        scene.rules.restore(CHILD, row(leaseKey=CHILD, checkpoint="TRIM_HORIZON"))
        if parent_row is not None:
            scene.rules.restore(PARENT, parent_row)
        scene.truth.record_written(CHILD, 21, 0.0, "", "k")
        child = scene.deliveries.started(CHILD, "a")
        scene.deliveries.initialized(child, TRIM_HORIZON)
        scene.deliveries.delivered(child, [Record("", "k", "21")])

    assert violation_in(action) == violation


def test_a_child_without_a_lease_row_is_a_violation() -> None:
    def action() -> None:
        scene = Scene()
        scene.deliveries.initialized(scene.deliveries.started(PARENT, "a"), TRIM_HORIZON)

    assert violation_in(action) == "no_lease"


def test_altered_data_is_a_violation() -> None:
    def action() -> None:
        scene = Scene()
        scene.rules.restore(PARENT, row())
        child = scene.deliveries.started(PARENT, "a")
        scene.deliveries.initialized(child, TRIM_HORIZON)
        scene.deliveries.delivered(child, [Record("b3RoZXI=", "k", "11")])

    assert violation_in(action) == "altered_record"


@pytest.mark.parametrize(
    ("poison_every", "violation"), [(7, None), (5, "good_record_set_aside"), (0, "good_record_set_aside")]
)
def test_only_what_no_child_can_process_is_set_aside(poison_every: int, violation: str | None) -> None:
    def action() -> None:
        scene = Scene()
        scene.deliveries.poison_every = poison_every
        data = b64encode(b"record 14").decode()
        scene.truth.record_written(PARENT, 14, 0.0, data, "key")
        scene.deliveries.set_aside(PARENT, "a", Record(data, "k", "14"), LetterCause.FAILED)

    assert violation_in(action) == violation


@pytest.mark.parametrize(
    ("stopped_s", "claims", "found"), [(100.05, False, 0), (100.2, False, 1), (100.05, True, 1)]
)
def test_who_stops_need_not_release_what_the_index_does_not_show_yet(
    stopped_s: float, *, claims: bool, found: int
) -> None:
    """The leader gave it 50 ms before; the index is 100 ms behind."""

    def action() -> None:
        scene, given = Scene(), row(leaseOwner="b", leaseCounter=6, ownerSwitchesSinceCheckpoint=2)
        scene.write(row(leaseOwner=None), given)
        if claims:
            scene.write(given, {**given, "leaseCounter": 7, "daemonFence": 5_000}, by="b")
        assert len(list(scene.rules.not_released({"b": stopped_s}, 0.1))) == found

    assert violation_in(action) is None


def test_a_checkpoint_passes_a_rejected_record_only_once_there_is_a_letter() -> None:
    def action(*, is_stored: bool, processed_by_another: bool) -> None:
        scene, data = Scene(), b64encode(b"record 14").decode()
        scene.truth.record_written(PARENT, 14, 0.0, data, "key")
        record, rules = Record(data, "k", "14"), scene.deliveries.rejects
        rules.chose(PARENT, [record], [record])
        rules.asked(PARENT, (14, 0))
        if processed_by_another:
            rules.chose(PARENT, [record], [])
        if is_stored:
            scene.deliveries.set_aside(PARENT, "a", record, LetterCause.REJECTED)
        rules.checkpointed(PARENT, "a", ExtendedSequenceNumber("13"))
        rules.checkpointed(PARENT, "a", ExtendedSequenceNumber("14"))

    assert violation_in(lambda: action(is_stored=False, processed_by_another=False)) == "neither"
    assert violation_in(lambda: action(is_stored=True, processed_by_another=False)) is None
    assert violation_in(lambda: action(is_stored=False, processed_by_another=True)) is None


@pytest.mark.parametrize(("who", "violation"), [("a", "false_alarm"), ("b", None)])
def test_a_checkpoint_of_another_worker_is_no_progress_of_this_one(who: str, violation: str | None) -> None:
    """Who has lost a lease and does not know it yet rightly says that it does not get on."""

    async def main() -> None:
        scene = Scene()
        scene.deliver_all()
        scene.asked_for(ExtendedSequenceNumber("13"))
        await anyio.sleep(5)
        scene.write(row(), row(checkpoint="13", leaseCounter=6, ownerSwitchesSinceCheckpoint=0))
        fields: dict[str, object] = {"cause": "restart", "detail": ""}
        scene.trace.log(who, "warning", "shard_stalled", bound={"shard_id": PARENT}, fields=fields)
        ProgressRules(
            truth=scene.truth,
            rules=scene.rules,
            deliveries=scene.deliveries,
            trace=scene.trace,
            workers=lambda: (),
            may_be_held=lambda _key: False,
        ).poll()
        await anyio.sleep(0.001)

    assert violation_while(main) == violation


@pytest.mark.parametrize(("dates_whole", "violation"), [(True, None), (False, "young_record_expired")])
def test_the_age_of_a_change_counts_from_its_whole_second(
    *, dates_whole: bool, violation: str | None
) -> None:
    async def main() -> None:
        scene = Scene()
        scene.deliveries.max_age_s = 10.0
        scene.truth.shards[PARENT].dates_whole = dates_whole
        scene.truth.record_written(PARENT, 14, 3.9, "", "key")
        await anyio.sleep(13.1)
        scene.deliveries.set_aside(PARENT, "a", Record("", "key", "14"), LetterCause.EXPIRED)
        await anyio.sleep(0.001)

    assert violation_while(main) == violation


def test_who_begins_at_the_latest_record_owes_no_letter_of_what_came_before() -> None:
    """A row at LATEST has nothing behind it; once something is stored, nobody may begin there again."""

    def action(*, stored: ExtendedSequenceNumber, bad: str) -> None:
        scene, data = Scene(), b64encode(b"record").decode()
        for number in (14, 15, 16):
            scene.truth.record_written(PARENT, number, 0.0, data, "key")
        rules = scene.deliveries.rejects
        rules.checkpointed(PARENT, "a", stored)
        record = Record(data, "k", bad)
        rules.chose(PARENT, [record], [record])
        scene.deliveries.reads_latest("b", PARENT)
        rules.checkpointed(PARENT, "b", ExtendedSequenceNumber("16"))

    assert violation_in(lambda: action(stored=LATEST, bad="15")) is None
    assert violation_in(lambda: action(stored=ExtendedSequenceNumber("14"), bad="15")) == "neither"


@pytest.mark.parametrize(
    ("position", "violation"), [("LATEST", None), ("TRIM_HORIZON", "child_before_parent")]
)
def test_who_begins_at_the_latest_record_of_a_child_waits_for_no_parent_that_had_no_lease(
    position: str, violation: str | None
) -> None:
    """The lease of the parent was asked for before it was closed, and is created after the child is read."""

    def action() -> None:
        scene = Scene()
        scene.rules = LeaseTableRules("leases", scene.truth, lease_s=10.0, at_latest=True)
        scene.deliveries = Deliveries(scene.truth, scene.rules, scene.trace)
        scene.rules.restore("other", {**FRESH, "leaseKey": "other"})
        scene.truth.shard_closed(PARENT)
        fresh = {**FRESH, "leaseKey": CHILD, "checkpoint": position}
        scene.rules.row_written(RowWrite(100.0, "a", "leases", CHILD, None, fresh))
        scene.write(None, {**FRESH, "checkpoint": "LATEST"})
        scene.deliveries.delivered(scene.deliveries.started(CHILD, "a"), [])

    assert violation_in(action) == violation


def test_a_letter_of_a_record_that_nobody_rejected_is_noticed() -> None:
    def action() -> None:
        scene, data = Scene(), b64encode(b"record 14").decode()
        scene.truth.record_written(PARENT, 14, 0.0, data, "key")
        scene.deliveries.set_aside(PARENT, "a", Record(data, "k", "14"), LetterCause.REJECTED)

    assert violation_in(action) == "good_record_set_aside"


LOCK: Row = {"key": "Leader", "ownerName": "a", "leaseDuration": "30000", "recordVersionNumber": "v1"}


@pytest.mark.parametrize(
    ("by", "after_s", "after", "violation"),
    [
        ("a", 5.0, {**LOCK, "recordVersionNumber": "v2"}, None),
        ("a", 5.0, None, None),
        ("b", 31.0, {**LOCK, "ownerName": "b", "recordVersionNumber": "v2"}, None),
        ("b", 29.0, {**LOCK, "ownerName": "b", "recordVersionNumber": "v2"}, "leader_deposed"),
        ("b", 29.0, None, "leader_deposed"),
        ("a", 5.0, LOCK, "leader_version_kept"),
        ("a", 5.0, {**LOCK, "recordVersionNumber": ""}, "malformed_row"),
        ("a", 5.0, {**LOCK, "leaseDuration": 30000}, "malformed_row"),
    ],
)
def test_the_leader_row(by: str, after_s: float, after: Row | None, violation: str | None) -> None:
    def action() -> None:
        rules = LeaderRules("coordinator", drift=0.0)
        rules.row_written(RowWrite(0.0, "a", "coordinator", "Leader", None, LOCK))
        rules.row_written(RowWrite(after_s, by, "coordinator", "Leader", LOCK, after))

    assert violation_in(action) == violation


def looking(prepare: Callable[[Scene], None], *, for_s: float = 90.0) -> str | None:
    """The violation that looking at an unchanging scene for a while reports."""

    async def main() -> None:
        scene = Scene()
        prepare(scene)
        for second in range(int(for_s)):
            current_loop().after(float(second), scene.liveness.poll)
        await anyio.sleep(for_s)

    try:
        run_virtual(main)
    except Violation as violation:
        return violation.name
    return None


def healthy(scene: Scene) -> None:
    scene.rules.restore(PARENT, row())
    scene.deliver_all()


def orphaned(scene: Scene) -> None:
    healthy(scene)
    scene.living = ["b"]


def unowned(scene: Scene) -> None:
    scene.deliver_all()
    scene.rules.restore(PARENT, row(leaseOwner=None))


def in_handoff(scene: Scene) -> None:
    scene.deliver_all()
    scene.rules.restore(PARENT, HANDING_OFF)


def without_lease(scene: Scene) -> None:
    healthy(scene)
    del scene.rules.views[PARENT]


def stalled(scene: Scene) -> None:
    scene.rules.restore(PARENT, row())


def not_ended(scene: Scene) -> None:
    healthy(scene)
    scene.truth.shard_closed(PARENT)


def child_lease_missing(scene: Scene) -> None:
    scene.deliver_all()
    scene.rules.restore(PARENT, row(checkpoint="SHARD_END"))


def finished(scene: Scene) -> None:
    scene.deliver_all()
    scene.rules.views.clear()
    scene.rules.restore(CHILD, row(leaseKey=CHILD, checkpoint="TRIM_HORIZON"))
    scene.rules.deleted = {PARENT}


@pytest.mark.parametrize(
    ("prepare", "violation"),
    [
        (healthy, None),
        (finished, None),
        (orphaned, "lease_orphaned"),
        (unowned, "lease_orphaned"),
        (in_handoff, "handoff_stuck"),
        (without_lease, "lease_missing"),
        (stalled, "shard_stalled"),
        (not_ended, "shard_end_missing"),
        (child_lease_missing, "lease_missing"),
    ],
)
def test_each_rule_of_progress_can_be_broken(prepare: Callable[[Scene], None], violation: str | None) -> None:
    assert looking(prepare) == violation


@pytest.mark.parametrize("prepare", [orphaned, in_handoff, without_lease, stalled, not_ended])
def test_nothing_is_wrong_before_the_bound(prepare: Callable[[Scene], None]) -> None:
    assert looking(prepare, for_s=55.0) is None
