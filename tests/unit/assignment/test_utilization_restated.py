"""The plans of the rule by load are those of its plain form, which looks at every worker and lease for each move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.assignment.load import BalanceOptions, FleetLoad, WorkerLoad, measure_fleet, metric_title
from kcl_daemon.assignment.plan import Fleet, MoveKind, move_to_worker
from kcl_daemon.assignment.utilization import by_utilization
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import CPU, THROUGHPUT, MetricName, WorkerRow
from tests.examples import examples
from tests.unit.assignment import fleets

WORKERS = [WorkerId(name) for name in ("a", "b", "ba", "c", "d", "e", "f")]
ASKED_MOST = 8

Move = tuple[LeaseKey, WorkerId, MoveKind, str]


@dataclass(slots=True)
class Plainly:
    """One run. The loads of `state` follow the moves."""

    fleet: Fleet
    options: BalanceOptions
    state: FleetLoad

    def moves(self) -> tuple[list[Move], list[LeaseKey]]:
        found, unplaced = self._place()
        if self.options.balance_this_run:
            found += self._fill() or self._even_out() or self._level()
        return found, unplaced

    def _place(self) -> tuple[list[Move], list[LeaseKey]]:
        found: list[Move] = []
        unplaced: list[LeaseKey] = []
        for lease in sorted(self.state.waiting, key=self._urgency):
            room = [each for each in self._loads if not self.options.is_full(each)]
            wanted = [each for each in room if each.worker_id != self.fleet.avoided_worker(lease)]
            to = min(wanted or room, key=lambda each: (each.relative, _named(each)), default=None)
            if to is None:
                unplaced.append(lease.lease_key)
                continue
            to.add(lease, self._weight(lease), self._kbps(lease))
            if lease.lease_owner != to.worker_id or lease.checkpoint_owner is not None:
                move = move_to_worker(lease, to.worker_id, self.fleet)
                found.append((lease.lease_key, to.worker_id, move.how, move.reason))
        return found, unplaced

    def _urgency(self, lease: Lease) -> tuple[bool, float, LeaseKey]:
        """Without an owner first, then the longest in the hands of a dead one."""
        if lease.actual_owner is None:
            return False, 0.0, lease.lease_key
        return True, -self.fleet.ages_s.get(lease.lease_key, 0.0), lease.lease_key

    def _fill(self) -> list[Move]:
        found: list[Move] = []
        takers = [
            each
            for each in self._loads
            if each.leases == 0
            and not each.is_above_ceiling
            and each.relative <= 1 + self.options.rebalance_threshold_percentage / 100
        ]
        donors = [each for each in self._loads if self._movable(each)]
        target, given = self.state.target_weight, dict[WorkerId, set[LeaseKey]]()
        while takers and donors:
            to = min(takers, key=lambda each: (each.weight, _named(each)))
            donor = min(donors, key=lambda each: (-each.weight, each.worker_id))
            gone = given.setdefault(donor.worker_id, set())
            leases = [each for each in self._movable(donor) if each.lease_key not in gone]
            fitting = [each for each in leases if self._weight(each) <= target - to.weight]
            lease = fitting[-1] if fitting else leases[0] if leases and to.leases == 0 else None
            if (
                lease is None
                or donor.weight <= target
                or min(len(leases), donor.leases) < 2
                or to.weight + self._weight(lease) >= donor.weight
            ):
                donors.remove(donor)
            elif not self._has_room(to, lease):
                takers.remove(to)
            else:
                gone.add(lease.lease_key)
                found.append(
                    self._move(
                        lease, donor, to, f"it reads nothing yet, {self._change(donor, to, THROUGHPUT)}"
                    )
                )
        return found

    def _even_out(self) -> list[Move]:
        state, threshold = self.state, self.options.rebalance_threshold_percentage / 100
        if state.quiet or (state.scale.is_idle and state.scale.measured):
            return []
        below = [each for each in self._loads if each.relative < 1]
        is_needed = any(each.relative < 1 - threshold and self._is_clear(each, -1) for each in below)
        givers = [
            each
            for each in self._loads
            if self._felt(each) and (self._is_over(each) or (is_needed and each.relative > 1 + threshold / 2))
        ]
        found: list[Move] = []
        for giver in sorted(givers, key=lambda each: (-_excess(each), each.worker_id)):
            found += self._relieve(giver, below)
        return found

    def _relieve(self, giver: WorkerLoad, below: list[WorkerLoad]) -> list[Move]:
        """The largest lease that the budget allows and the most idle worker can take; then smaller ones, and others."""
        threshold, found = self.options.rebalance_threshold_percentage / 100, list[Move]()
        leases, left, unfit = self._felt(giver), _excess(giver), set[WorkerId]()
        budget = left * self.options.dampening_percentage / 100
        smallest = self._weight(leases[0])
        if budget < smallest <= left:
            budget = smallest
        is_over = self._is_over(giver)
        tried = self._largest(leases, budget, or_smallest=True)
        while tried >= 0 and len(leases) > 1:
            asked = [each for each in below if each.worker_id not in unfit]
            to = min(asked, key=lambda each: (each.relative, _named(each)), default=None)
            if to is None or to.relative >= (1 if is_over else 1 - threshold):
                break
            lease = leases[tried]
            weight, most = self._weight(lease), min(inf if is_over else 1, giver.relative - threshold / 2)
            if to.relative_with(weight) <= most and self._has_room(to, lease):
                leases.remove(lease)
                name = giver.leading if giver.leading in to.values else THROUGHPUT
                found.append(self._move(lease, giver, to, self._change(giver, to, name)))
                budget -= weight
                tried = min(tried - 1, self._largest(leases, budget, or_smallest=False))
            elif tried:
                tried -= 1
            elif len(unfit) < ASKED_MOST:
                unfit.add(to.worker_id)
                tried = self._largest(leases, budget, or_smallest=not found)
            else:
                break
        return found

    def _largest(self, leases: list[Lease], budget: float, *, or_smallest: bool) -> int:
        """The place of the largest that fits, -1: none."""
        count = sum(self._weight(each) <= budget for each in leases)
        return 0 if count == 0 and or_smallest and self.options.allow_throughput_overshoot else count - 1

    def _level(self) -> list[Move]:
        found: list[Move] = []
        for host in self.state.hosts:
            loads, gone = [self.state.loads[each] for each in host], set[LeaseKey]()
            while True:
                to = min(loads, key=lambda each: (each.leases, each.weight, each.worker_id))
                donor = max(loads, key=lambda each: (each.leases, each.weight, each.worker_id))
                fitting = [
                    each
                    for each in self._movable(donor)
                    if each.lease_key not in gone and self._weight(each) <= donor.weight - to.weight
                ]
                if donor.leases - to.leases < 2 or not fitting or not self._has_room(to, fitting[-1]):
                    break
                gone.add(fitting[-1].lease_key)
                why = f"they share a host, leases {donor.leases} -> {to.leases}"
                found.append(self._move(fitting[-1], donor, to, why))
        return found

    def _move(self, lease: Lease, donor: WorkerLoad, to: WorkerLoad, why: str) -> Move:
        weight, kbps = self._weight(lease), self._kbps(lease)
        donor.drop(lease, weight, kbps)
        to.add(lease, weight, kbps)
        reason = f"{lease.lease_key}: {donor.worker_id} -> {to.worker_id}, {why}"
        return lease.lease_key, to.worker_id, MoveKind.HANDOFF, reason

    def _change(self, donor: WorkerLoad, to: WorkerLoad, name: MetricName) -> str:
        if name == THROUGHPUT and self.state.scale.is_idle:
            return f"leases {donor.leases} -> {to.leases}"
        return f"{metric_title(name)} {donor.describe(name)} -> {to.describe(name)}"

    def _movable(self, load: WorkerLoad) -> list[Lease]:
        """By size. Not what is on its way, or was placed just now."""
        waiting = {each.lease_key for each in self.state.waiting}
        found = [
            each
            for each in self.fleet.unfinished
            if each.lease_owner == load.worker_id
            and each.checkpoint_owner is None
            and each.lease_key not in waiting
        ]
        return sorted(found, key=lambda each: (self._weight(each), each.lease_key))

    def _felt(self, load: WorkerLoad) -> list[Lease]:
        return [each for each in self._movable(load) if self.state.scale.is_felt(each)]

    def _is_over(self, load: WorkerLoad) -> bool:
        limit = 1 + self.options.rebalance_threshold_percentage / 100
        return load.is_above_ceiling or (load.relative > limit and self._is_clear(load, 1))

    def _is_clear(self, load: WorkerLoad, sign: int) -> bool:
        """Two points of a metric, or one KiB/s, of which there may be none."""
        if load.leading != THROUGHPUT:
            return sign * load.excess_points >= 2
        return self.state.scale.is_idle or sign * (load.weight - self.state.target_weight) >= 1

    def _has_room(self, to: WorkerLoad, lease: Lease) -> bool:
        return self.options.has_room_for(to, lease, self._kbps(lease))

    def _weight(self, lease: Lease) -> float:
        return self.state.scale.weight(lease)

    def _kbps(self, lease: Lease) -> float:
        return self.state.scale.kbps(lease)

    @property
    def _loads(self) -> list[WorkerLoad]:
        return [*self.state.loads.values()]


def _named(load: WorkerLoad) -> tuple[int, WorkerId]:
    return load.leases, load.worker_id


def _excess(load: WorkerLoad) -> float:
    """How much of its weight is beyond its share."""
    return load.weight * (1 - 1 / load.relative) if load.relative > 1 else 0.0


SIZES: list[tuple[float | None, ...]] = [
    (10.0,),
    (10.0, 20.0),
    (0.0, 10.0, 50.0),
    (10.0, 20.0, 30.0, 50.0, 100.0),
    (50.0, 60.0, 70.0),
    (None, 10.0, 30.0),
    (0.0,),
    (None,),
    (0.25, 0.5, 1.0),
    (1.0, 2.0, 3.0),
]
OTHER = MetricName("X")
GONE = WorkerId("gone")


@st.composite
def owned(draw: st.DrawFn) -> list[Lease]:
    """Leases of up to seven workers and of one that is gone; some are on their way, some are nobody's, some failed."""
    sizes, workers = draw(st.sampled_from(SIZES)), draw(st.integers(2, len(WORKERS)))
    numbers = draw(st.sampled_from([(0, 0, 1, 1, 2, 3, 4, 6), (1, 2, 2, 3), (2, 5)]))
    owners = [
        *(each for each in WORKERS[:workers] for _ in range(draw(st.sampled_from(numbers)))),
        *draw(st.lists(st.sampled_from([None, GONE, *WORKERS[:2]]), max_size=2)),
    ]
    return [
        replace(
            fleets.lease(
                number,
                owner,
                draw(st.sampled_from(sizes)),
                old_owner=WORKERS[number % 5]
                if owner is not None and draw(st.integers(0, 19)) == 19
                else None,
            ),
            degraded_by=draw(st.sampled_from([*[None] * 9, *WORKERS[:2]])),
        )
        for number, owner in enumerate(owners)
    ]


@st.composite
def reported(draw: st.DrawFn) -> dict[WorkerId, WorkerRow]:
    """Nothing; or the CPU of most workers, perhaps of one host, with operating ranges that may be low."""
    percents = draw(st.sampled_from([(), (), range(8, 92, 2), range(20, 65, 5), range(8, 28, 1)]))
    if not percents:
        return {}
    half, metric = draw(st.sampled_from([1.0, 2.0])), draw(st.sampled_from([CPU, CPU, CPU, OTHER]))
    ranges = draw(st.sampled_from([(100,), (100, 100, 50)]))
    names = [name for name in WORKERS if draw(st.integers(0, 9)) < 9]
    rows = {
        name: WorkerRow(
            name,
            1,
            {metric: (draw(st.sampled_from(percents)) / half,)},
            {metric: draw(st.sampled_from(ranges))},
        )
        for name in names
    }
    return fleets.on_one_host(rows) if draw(st.integers(0, 3)) == 3 else rows


# Binary fractions, so that what is at a bound is exactly there.
options = st.builds(
    BalanceOptions,
    rebalance_threshold_percentage=st.sampled_from([10, 25, 50]),
    dampening_percentage=st.sampled_from([60, 50, 25, 100, 1]),
    allow_throughput_overshoot=st.sampled_from([True, True, False]),
    max_throughput_per_host_kbps=st.sampled_from([inf, inf, inf, inf, 25.0, 45.0, 60.0, 100.0]),
)


@st.composite
def fleet_of(draw: st.DrawFn) -> Fleet:
    """Some leases have no owner that renews them, some handoffs take too long."""
    leases = draw(owned())
    leases = leases[::-1] if draw(st.booleans()) else leases
    lost = draw(st.sets(st.integers(0, max(len(leases) - 1, 0)), max_size=3))
    ages_s = draw(st.lists(st.sampled_from([0.5, 2.0]), max_size=3))
    return fleets.fleet(
        leases,
        *WORKERS[: draw(st.integers(2, len(WORKERS)))],
        stats=draw(reported()),
        abandoned=frozenset(
            each.lease_key
            for number, each in enumerate(leases)
            if each.lease_owner == GONE or (each.actual_owner is not None and number in lost)
        ),
        overdue=frozenset(
            each.lease_key for number, each in enumerate(leases) if each.checkpoint_owner and number % 2
        ),
        ages_s={
            leases[number].lease_key: age_s
            for number, age_s in zip(sorted(lost), ages_s, strict=False)
            if leases
        },
        most=draw(st.sampled_from([2**31 - 1, 2**31 - 1, 2**31 - 1, 1, 2, 3])),
    )


def assert_as_plainly(state: Fleet, chosen: BalanceOptions) -> None:
    plan = by_utilization(chosen)(state)
    found, unplaced = Plainly(state, chosen, measure_fleet(state, alpha=chosen.ema_alpha)).moves()
    assert [(each.lease.lease_key, each.to, each.how, each.reason) for each in plan.moves] == found
    assert list(plan.unplaced) == unplaced


@settings(max_examples=examples(2000), deadline=None)
@given(state=fleet_of(), chosen=options)
def test_the_plan_is_that_of_the_plain_form(state: Fleet, chosen: BalanceOptions) -> None:
    assert_as_plainly(state, chosen)


# Fleets at the bounds of the rule, found as the smallest that tell it from a rule with one mistake: leases as number, owner,
# KiB/s, former owner and the worker that failed; workers; what they report of their CPU, or another metric; and the options.
CORNERS: Final = [
    ("00:a=10 01:a=10 02:b=10 03:b=10", "a b", "C: a=4 b=9", "10 %, 100 %, 3 leases"),
    ("00:a=3 01:a=1!a 02:b=1 03:b=2!a 04:ba=3 05:b=3", "a b", "", "10 %, 60 %"),
    ("00:a=0.25 01:b=0.25 02:ba=0.25 03:ba=0.25 04:a=0.5", "a b", "", "10 %, 50 %, 2 leases"),
    ("05:ba=10<a 04:ba=10 03:b=10 02:b=30 01:b=10 00:a=30", "a b ba c", "C: a=27.5 b=30 ba=17.5", "25 %, 25 %, 45 KiB/s"),
    ("03:a=10!a 02:b=10 01:b=20 00:a=10", "a b ba c", "C: a=8 b=32 ba=32 c=62", "25 %, 100 %, 3 leases"),
    ("00:a=10 01:a=10!a 02:b=10 03:b=10", "a b ba c d", "C: a=22/50 b=18 ba=24/50 c=10 d=22", "25 %, 100 %, no overshoot, 25 KiB/s"),
    ("06:?=20 05:b=10 04:d=10 03:d=10 02:c=20!a 01:ba=20 00:b=10", "a b ba c", "X: a=84 b=44 ba=44 c=58", "50 %, 50 %, 100 KiB/s"),
    ("00:b=50<a 01:b=20!a", "a b", "", "10 %, 60 %"),
    ("00:a=1 01:b=0.5 02:ba=0.25 03:c=0.5!a 04:d=1 05:d=0.25 06:a=0.25!a 07:a=1", "a b", "", "50 %, 60 %"),
    ("00:a!a 01:a!b 02:a!b 03:a", "a b", "", "10 %, 25 %"),
    ("00:a=10 01:a=10 02:a=10 03:b=30 04:b=10 05:ba=20 06:ba=10 07:ba=10 08:c=10", "a b ba c", "", "50 %, 50 %"),
    ("00:a=50 01:a=50!a 02:a=50 03:a=50 04:a=50 05:b=50 06:b=60 07:b=50 08:b=50 09:b=50 10:ba=50 11:ba=50 12:ba=50!b 13:ba=50 14:ba=60 15:b=50", "a b", "", "10 %, 25 %"),
    ("11:ba=20 10:ba=10 09:ba=10 08:ba=20 07:ba=20 06:b=10 05:b=10 04:a=10 03:a=10<c 02:a=20!b 01:a=20 00:a=20", "a b", "C: a=21 b=14", "25 %, 100 %"),
    ("00:a=10 01:a=50 02:b=10 03:ba=50 04:ba=20 05:ba=30 06:c=50 07:c=20 08:d=50 09:d=50 10:e=30!b 11:a=100", "a b ba c", "C: a=4 b=6 ba=45/50 c=28/50", "10 %, 60 %, 60 KiB/s"),
    ("08:ba=10 07:b=20 06:b=100 05:b=50!b 04:b=30 03:b=50 02:b=100 01:a=50 00:a=100", "a b ba c d e", "C: a=10 ba=15 c=9 d=11 e=24", "10 %, 100 %, 45 KiB/s"),
    ("00:a=10 01:a=10 02:a=10 03:a=10 04:b=10 05:b=10 06:b=10 07:ba=20 08:c=10 09:c=20 10:c=20 11:c=10 12:c=20 13:c=10", "a b ba c d", "X: a=26 b=17 c=17 d=38", "10 %, 100 %"),
    ("03:a=10 02:a=10 01:ba 00:a=30", "a b", "", "10 %, 60 %"),
    ("05:a 04:? 03:ba 02:ba 01:ba 00:a<a!a", "a b ba", "", "50 %, 25 %"),
    ("12:d=1 11:d=1 10:d=1 09:d=3 08:d=3!a 07:c=3 06:c=2 05:ba=3 04:ba=1 03:b=3!a 02:b=1 01:a=2 00:a=2", "a b ba c d", "X on one host: a=50 b=25 ba=60 c=55 d=25", "25 %, 1 %, 100 KiB/s"),
    ("17:e=2 16:e=1 15:e=2 14:e=3 13:e=3 12:d=3 11:d=1 10:d=2 09:d=2!b 08:d=2 07:c=2 06:c=1 05:ba=2!b 04:ba=1 03:b=3!b 02:b=2!a 01:a=3!a 00:a=1", "a b ba c d e", "X on one host: a=4/50 b=9 ba=8/50 c=6 d=4 e=5", "25 %, 100 %"),
    ("00:b 01:b!a 02:b", "a b", "", "10 %, 60 %"),
    ("00:a 01:a!a 02:a 03:b 04:b 05:ba 06:ba 07:c 08:c 09:d 10:a!a 11:b", "a b", "C: a=35 b=20", "10 %, 50 %"),
    ("00:a!b 01:a!b 02:b 03:b 04:b<d", "a b", "X on one host: a=12.5/50 b=17.5/50", "10 %, 100 %, no overshoot"),
    ("00:b=30 01:b=10", "a b", "", "50 %, 60 %"),
]  # fmt: skip
LEASE: Final = re.compile(
    r"(?P<number>\d+):(?P<owner>\w+|\?)(=(?P<kbps>[\d.]+))?(<(?P<old>\w+))?(!(?P<failed>\w+))?"
)


def written(leases: str) -> Iterator[Lease]:
    for word in leases.split():
        found = LEASE.fullmatch(word)
        assert found is not None, word
        owner, old, failed = (_worker(found[name]) for name in ("owner", "old", "failed"))
        kbps = None if found["kbps"] is None else float(found["kbps"])
        lease = fleets.lease(int(found["number"]), owner, kbps, old_owner=old)
        yield replace(lease, degraded_by=failed)


def _worker(name: str | None) -> WorkerId | None:
    return None if name in {None, "?"} else WorkerId(str(name))


def rows_of(reports: str) -> dict[WorkerId, WorkerRow]:
    metric, _, figures = reports.partition(": ")
    rows: dict[WorkerId, WorkerRow] = {}
    for word in figures.split():
        name, _, percent = word.partition("=")
        percent, _, limit = percent.partition("/")
        key = MetricName(metric.split()[0])
        rows[WorkerId(name)] = WorkerRow(
            WorkerId(name), 1, {key: (float(percent),)}, {key: int(limit or 100)}
        )
    return fleets.on_one_host(rows) if "host" in metric else rows


def options_of(words: str) -> tuple[BalanceOptions, int]:
    threshold, dampening, *more = words.split(", ")
    kbps = next((float(each.split()[0]) for each in more if each.endswith("KiB/s")), inf)
    chosen = BalanceOptions(
        rebalance_threshold_percentage=float(threshold.split()[0]),
        dampening_percentage=float(dampening.split()[0]),
        allow_throughput_overshoot="no overshoot" not in more,
        max_throughput_per_host_kbps=kbps,
    )
    return chosen, next((int(each.split()[0]) for each in more if each.endswith("leases")), 2**31 - 1)


@pytest.mark.parametrize(("leases", "workers", "reports", "words"), CORNERS)
def test_the_plan_is_that_of_the_plain_form_at_the_bounds_of_the_rule(
    leases: str, workers: str, reports: str, words: str
) -> None:
    chosen, room = options_of(words)
    names = [WorkerId(each) for each in workers.split()]
    state = fleets.fleet(list(written(leases)), *names, stats=rows_of(reports), most=room)
    assert_as_plainly(state, chosen)


A, B = WorkerId("a"), WorkerId("b")


def moved(leases: list[Lease], chosen: BalanceOptions, **percent: float) -> list[str]:
    """Number of the lease and new owner."""
    workers = sorted({each.lease_owner for each in leases if each.lease_owner is not None})
    state = fleets.fleet(leases, *workers, stats=fleets.reports(**percent))
    assert_as_plainly(state, chosen)
    return [f"{each.lease.lease_key[-2:]} {each.to}" for each in by_utilization(chosen)(state).moves]


def read_by(**kbps: Sequence[float]) -> list[Lease]:
    pairs = [(WorkerId(owner), each) for owner, sizes in kbps.items() for each in sizes]
    return [fleets.lease(number, owner, each) for number, (owner, each) in enumerate(pairs)]


def chosen_of(threshold: float, dampening: float = 100, *, overshoot: bool = True) -> BalanceOptions:
    return BalanceOptions(
        rebalance_threshold_percentage=threshold,
        dampening_percentage=dampening,
        allow_throughput_overshoot=overshoot,
    )


def test_a_lease_that_is_all_of_the_excess_fits_it() -> None:
    leases = read_by(a=[10, 10], b=[5], c=[5])
    assert moved(leases, chosen_of(10, 1, overshoot=False)) == ["01 b"]


def test_the_dampened_excess_is_not_rounded() -> None:
    leases = read_by(a=[2.5] * 8, b=[5], c=[5])
    assert len(moved(leases, chosen_of(10, 75))) == 3


def test_who_is_above_its_share_by_half_the_threshold_does_not_help_yet() -> None:
    leases = read_by(a=[10, 10], b=[10, 10], c=[10, 10], d=[10, 10])
    assert moved(leases, chosen_of(50), a=50, b=50, c=50, d=10) == []
    assert moved(leases, chosen_of(50), a=51, b=50, c=49, d=10) == ["00 d"]


def test_a_receiver_may_be_as_far_below_the_giver_as_half_the_threshold() -> None:
    assert moved(read_by(a=[60, 60], b=[50], c=[70]), chosen_of(25)) == ["00 b"]
    assert moved(read_by(a=[60, 60], b=[51], c=[69]), chosen_of(25)) == []


def test_helpers_fill_a_worker_only_up_to_the_threshold_below_its_share() -> None:
    assert len(moved(read_by(a=[8] * 12, b=[52], c=[92]), chosen_of(25))) == 1


def test_helpers_fill_no_worker_above_its_share() -> None:
    assert moved(read_by(a=[70, 75], b=[40], c=[115]), chosen_of(50)) == []


def test_who_has_its_share_gets_no_more_although_the_giver_has_too_much() -> None:
    assert len(moved(read_by(a=[10] * 35, b=[10] * 5), chosen_of(10), a=60, b=20)) == 5


def test_the_next_receiver_is_offered_the_smallest_lease_where_none_fits_the_excess() -> None:
    leases = read_by(a=[50, 55, 60], b=[25], c=[100])
    assert moved(leases, chosen_of(10), a=58, b=30, c=35) == ["00 c"]


def test_a_point_or_two_of_any_metric_are_noise() -> None:
    leases = read_by(a=[100, 60, 40, 30], b=[20, 20])
    stats = {
        name: WorkerRow(name, 1, {OTHER: (percent,)}, {OTHER: 100}) for name, percent in ((A, 11.5), (B, 8.5))
    }
    assert by_utilization(BalanceOptions())(fleets.fleet(leases, A, B, stats=stats)).moves == ()


def test_less_than_two_points_are_noise_although_a_small_lease_would_fit() -> None:
    leases = read_by(a=[10] * 15, b=[10] * 10)
    assert moved(leases, chosen_of(10), a=11.5, b=8.5) == []
    assert moved(leases, chosen_of(10), a=12.5, b=7.5) != []


@pytest.mark.parametrize(("slow", "moves"), [(8, 1), (9, 0)])
def test_eight_receivers_that_refuse_are_asked_before_the_one_that_takes_it(slow: int, moves: int) -> None:
    names = [f"s{number}" for number in range(slow)]
    leases = read_by(a=[50, 50], c=[100], **{name: [20] for name in names})
    assert len(moved(leases, chosen_of(10, 60), a=90, c=35, **dict.fromkeys(names, 34.0))) == moves
