"""The rules of positions inside KPL aggregates, seen to fail: each is broken in the daemon, and noticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from kcl_daemon.config.children import ConcurrencySettings, FailureSettings, LaneCounts
from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.leases.row import RowUpdate, WriteResult
from kcl_daemon.records import kpl
from kcl_daemon.records.batch import Batch, Limits
from kcl_daemon.records.batch_text import BatchText
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.records.kpl import Deaggregator, Message
from kcl_daemon.records.lane_window import LaneWindow, Position
from kcl_daemon.records.payload import AnyRecord, Payload, UserRecords
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.distribution import Distribution
from kcl_daemon.retrieval.stages import Opened
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.fleet.aggregates import AggregatesPlan
from tests.simulator.fleet.world import Sabotage
from tests.simulator.plans.plan import Kill, Plan, Planned, Scale, Split, Start
from tests.simulator.runner import run_plan
from tests.simulator.sabotage.parts import TableWrapper
from tests.simulator.scenarios.filtered import Kept
from tests.simulator.scenarios.poison import DEAD_LETTERS
from tests.simulator.trace import Write

Patch = Callable[[pytest.MonkeyPatch], None]
ODD = Kept(digits="13579")

PLAIN = Plan(
    shards=2,
    records_per_s=10.0,
    events=(Planned(0.0, Start()), Planned(25.0, Split(0)), Planned(40.0, Kill(0, 3.0))),
    calm_at_s=50.0,
    ends_at_s=70.0,
    bound_s=100.0,
    children_plan=ChildrenPlan(
        behaviour=Behaviour(when=When.MIDDLE_OF_BATCH, process_s=(0.05, 0.3)),
        mischief={Mischief.EXIT_INSIDE: 0.15},
    ),
    aggregates=AggregatesPlan(share=1.0, most=12, strays=0.3),
    keys=50,
)
FILTERED = replace(PLAIN, keeps=ODD, delivery=DeliverySettings(record_filter=RecordFilter.of(ODD.pattern)))
CUT = replace(PLAIN, delivery=DeliverySettings(batch_window_ms=3_000, batch_max_records=17))
REJECTING = replace(
    PLAIN,
    children_plan=replace(PLAIN.children_plan, reject_every=5),
    failures=FailureSettings(dead_letters=DEAD_LETTERS.dead_letters),
)
LANES = replace(PLAIN, concurrency=ConcurrencySettings(lanes=LaneCounts(3), window_bytes=20_000))
# One lane of many hangs, the others go on; those who follow have fewer.
FEWER_LANES = replace(
    PLAIN,
    shards=1,
    events=(Planned(0.0, Start()), *(Planned(at_s, Kill(0, 1.0)) for at_s in (20.0, 35.0, 50.0))),
    children_plan=replace(PLAIN.children_plan, mischief={Mischief.HANG: 0.02}),
    concurrency=ConcurrencySettings(lanes=LaneCounts(8), remembers=True),
    lane_counts=(8, 3),
    calm_at_s=80.0,
    ends_at_s=100.0,
    child_timeout_s=20.0,
)
# The service puts an aggregate where it likes, and doubles the shards.
CHOSEN = replace(
    PLAIN,
    events=(Planned(0.0, Start()), Planned(25.0, Scale(up=True))),
    chooses_shards=True,
    aggregates=AggregatesPlan(share=0.7, most=12, strays=0.5, keyless=0.5),
)
PLANS = {
    "chosen by the service": CHOSEN,
    "plain": PLAIN,
    "filtered": FILTERED,
    "cut": CUT,
    "rejecting": REJECTING,
    "lanes": LANES,
    "fewer lanes": FEWER_LANES,
}


def violation(plan: Plan, sabotage: Sabotage | None = None, write: Write | None = None) -> str | None:
    plan = replace(plan, children_plan=replace(plan.children_plan))  # from the calm on its children behave
    found = run_plan(plan, scenario="sabotage", seed=1, sabotage=sabotage, write=write).violation
    return None if found is None else found.name


def begins_at_the_next_record(patch: pytest.MonkeyPatch) -> None:
    after = Payload.after
    patch.setattr(
        Payload,
        "after",
        lambda payload, at: after(payload, at if at.is_sentinel else _with_sub_number(at, 1 << 20)),
    )


def begins_with_the_whole_aggregate(patch: pytest.MonkeyPatch) -> None:
    after_checkpoint = Opened._after_checkpoint

    def whole(opened: Opened, batch: Batch) -> Batch:
        source = opened._source
        at = source.checkpoint
        if not at.is_sentinel:
            number = ExtendedSequenceNumber(str(int(at.sequence_number) - 1))
            opened._source = replace(source, checkpoint=number)
        rest = after_checkpoint(opened, batch)
        opened._source = source
        return rest

    patch.setattr(Opened, "_after_checkpoint", whole)


def counts_without_the_strays(patch: pytest.MonkeyPatch) -> None:
    def counted(outer: AnyRecord, bodies: Sequence[bytes], *rest: object) -> UserRecords:
        keys, _, make = rest
        return UserRecords(outer, bodies, keys, range(len(bodies)), make)  # type: ignore[arg-type]

    patch.setattr(kpl, "UserRecords", counted)


def leaves_out_an_aggregate_for_one_stray(patch: pytest.MonkeyPatch) -> None:
    at_once = Deaggregator._at_once

    def all_or_nothing(
        each: Deaggregator, outer: AnyRecord, message: Message, keys: list[bytes], kept: bool | None
    ) -> UserRecords | None:
        found = at_once(each, outer, message, keys, kept)
        if found is None or len(found) == message.count:
            return found
        return UserRecords(outer, [], [], [], found._make)

    patch.setattr(Deaggregator, "_at_once", all_or_nothing)


def leaves_out_what_the_service_has_put_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Distribution, "kept", lambda *_: False)


def filters_an_aggregate_by_its_first_record(patch: pytest.MonkeyPatch) -> None:
    in_steps = RecordFilter.kept_in_steps

    def by_the_first(each: RecordFilter, payload: Payload) -> Iterator[Payload | None]:
        for kept in in_steps(each, payload):
            if kept is not None:
                first = {one.sequence_number for one in kept.records if not one.position.sub_sequence_number}
                records = [one for one in payload.records if one.sequence_number in first]
                yield Payload.only(records)

    patch.setattr(RecordFilter, "kept_in_steps", by_the_first)


def forgets_where_a_batch_was_cut(patch: pytest.MonkeyPatch) -> None:
    cut = Batch.cut

    def forgetful(batch: Batch, limits: Limits) -> tuple[Batch, Batch]:
        head, tail = cut(batch, limits)
        if head and tail:
            number = head.payload.last.sequence_number
            rest = [record for record in tail.records if record.sequence_number != number]
            tail = tail.holding(tail.payload.some(rest))
        return head, tail

    patch.setattr(Batch, "cut", forgetful)


def rejects_the_first_of_an_aggregate(patch: pytest.MonkeyPatch) -> None:
    find = BatchText.find
    patch.setattr(BatchText, "find", lambda text, number, _sub_number: find(text, number, 0))


def a_lane_is_done_with_the_whole_aggregate(patch: pytest.MonkeyPatch) -> None:
    checkpoint = LaneWindow.checkpoint

    def by_number(window: LaneWindow, lane: int, position: Position) -> None:
        same = (
            entry.position
            for entry in window._lanes[lane].entries
            if entry.position.sequence_number == position.sequence_number
        )
        checkpoint(window, lane, max(same, default=position))

    patch.setattr(LaneWindow, "checkpoint", by_number)


def more_lanes_are_known(patch: pytest.MonkeyPatch) -> None:
    init = LaneWindow.__init__

    def some_of_them(
        window: LaneWindow,
        lanes: int,
        start: Position,
        order: ShardOrder = ShardOrder.KEY,
        done: Sequence[Position] = (),
    ) -> None:
        init(window, lanes, start, order, done[:lanes] if len(done) > lanes else done)

    patch.setattr(LaneWindow, "__init__", some_of_them)


def _with_sub_number(at: ExtendedSequenceNumber, sub_number: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(at.sequence_number, sub_number)


@pytest.mark.parametrize("name", PLANS)
def test_positions_that_are_right_break_no_rule(name: str) -> None:
    assert violation(PLANS[name]) is None


@pytest.mark.parametrize(
    ("name", "broken", "noticed"),
    [
        ("plain", begins_at_the_next_record, "record_skipped"),
        ("plain", begins_with_the_whole_aggregate, "out_of_order"),
        ("plain", counts_without_the_strays, "stray_delivered"),
        ("plain", leaves_out_an_aggregate_for_one_stray, "record_skipped"),
        ("chosen by the service", leaves_out_what_the_service_has_put_there, "record_skipped"),
        ("filtered", filters_an_aggregate_by_its_first_record, "filtered_record"),
        ("cut", forgets_where_a_batch_was_cut, "record_skipped"),
        ("rejecting", rejects_the_first_of_an_aggregate, "good_record_set_aside"),
        ("lanes", a_lane_is_done_with_the_whole_aggregate, "checkpoint_never_asked"),
        ("fewer lanes", more_lanes_are_known, "checkpoint_never_asked"),
    ],
)
@pytest.mark.usefixtures("blind")
def test_each_rule_of_positions_can_be_broken(
    name: str, broken: Patch, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert violation(PLANS[name]) == noticed


def test_children_die_inside_aggregates_and_the_next_ones_begin_there() -> None:
    lines: list[str] = []
    assert violation(PLAIN, write=lines.append) is None
    inside = [line for line in lines if re.search(r"child_initialized .* at \d+/[1-9]", line)]
    assert len(inside) >= 5


class Whole(TableWrapper):
    """Stores the end of an aggregate where its middle was checkpointed."""

    sub_number = 1 << 20

    async def update(self, update: RowUpdate) -> WriteResult:
        """With another sub-sequence number."""
        if "checkpointSubSequenceNumber" in update.put and str(update.put["checkpoint"]).isdigit():
            put = {**update.put, "checkpointSubSequenceNumber": self.sub_number}
            update = replace(update, put=put)
        return await self._table.update(update)


class WithoutSubNumber(Whole):
    """Stores its beginning."""

    sub_number = 0


@pytest.mark.parametrize("table", [Whole, WithoutSubNumber])
@pytest.mark.usefixtures("blind")
def test_a_row_with_another_sub_sequence_number_than_was_asked_for_is_noticed(table: type[Whole]) -> None:
    assert violation(PLAIN, Sabotage(table=table)) == "checkpoint_never_asked"
