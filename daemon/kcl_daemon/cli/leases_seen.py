"""What `kcl-daemon leases` has seen of an application, as values.

Pure. Owns what is counted and concluded for people; knows nothing of how it was read or how it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kcl_daemon.assignment.plan import Fleet, Move, Plan
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.stats import CPU, FAILED


@dataclass(frozen=True, slots=True)
class Origin:
    """Where it was seen.

    Args:
        application: `applicationName`.
        stream: ARN or name.
        layout: which tables the application has.
        reason: why that is so.
        tables: names of those that are there, lease table first.
    """

    application: str
    stream: str
    layout: TableLayout
    reason: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's lock.

    Args:
        worker: who holds it, or held it last.
        lease_s: for how long its owner may be silent.
        released: its owner gave it up.
        silent_s: for how long it was seen unchanged; 0 after a single look.
    """

    worker: WorkerId
    lease_s: float
    released: bool
    silent_s: float

    @property
    def leads(self) -> bool:
        """Whether the lock is in force."""
        return not self.released and self.silent_s <= self.lease_s


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that cannot be what it should be; every worker leaves it alone."""

    table: str
    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a checkpoint is behind the tip of its shard: milliseconds, or why that is not known."""

    millis: int | None
    unknown_because: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One state of an application.

    Args:
        origin: where.
        leader: None: there is no lock.
        fleet: leases, workers and what follows from watching them.
        unreadable: rows that are not among them.
        lags: of unfinished leases; None: not asked for.
        wall_s: epoch seconds of this machine at the last look.
        watched_s: from the first look to the last; 0: there was but one.
        failover_s: `failoverTimeMillis`.
    """

    origin: Origin
    leader: Leader | None
    fleet: Fleet
    unreadable: tuple[UnreadableRow, ...]
    lags: Mapping[LeaseKey, Lag] | None
    wall_s: float
    watched_s: float
    failover_s: float

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All of them, by key."""
        return tuple(sorted(self.fleet.leases, key=lambda lease: lease.lease_key))

    @property
    def could_tell_abandoned(self) -> bool:
        """Whether it was watched for long enough to see that a lease stands still for too long."""
        return self.watched_s > self.failover_s


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker.

    Args:
        worker_id: its name.
        alive: whether a leader would give it leases.
        last_report_s: epoch seconds by its own clock; None: it has no row.
        report_age_s: the same, as seconds before `Seen.wall_s`.
        cpu_percent: its latest average; None: it reports none.
        cpu_failed: its latest figure could not be taken.
        leases: unfinished ones that it reads.
        leads: whether it is the leader.
    """

    worker_id: WorkerId
    alive: bool
    last_report_s: int | None
    report_age_s: float | None
    cpu_percent: float | None
    cpu_failed: bool
    leases: int
    leads: bool


def worker_views(seen: Seen) -> tuple[WorkerView, ...]:
    """Everyone who reports, owns an unfinished lease or leads, by name."""
    reads = Counter(lease.actual_owner for lease in seen.fleet.unfinished if lease.actual_owner is not None)
    leader = seen.leader.worker if seen.leader is not None and seen.leader.leads else None
    names = {*seen.fleet.stats, *seen.fleet.workers, *reads, *([] if leader is None else [leader])}
    return tuple(_worker_view(seen, name, reads[name], leads=name == leader) for name in sorted(names))


def _worker_view(seen: Seen, name: WorkerId, leases: int, *, leads: bool) -> WorkerView:
    row = seen.fleet.stats.get(name)
    averages = () if row is None else row.metrics.get(CPU, ())
    latest = averages[-1] if averages else None
    return WorkerView(
        worker_id=name,
        alive=name in seen.fleet.workers,
        last_report_s=None if row is None else row.last_update_s,
        report_age_s=None if row is None else seen.wall_s - row.last_update_s,
        cpu_percent=None if latest == FAILED else latest,
        cpu_failed=latest == FAILED,
        leases=leases,
        leads=leads,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The leases, counted.

    Args:
        leases: all of them.
        owned: unfinished ones that somebody owns.
        unowned: unfinished ones that nobody owns.
        abandoned: of `owned`, those whose owner has gone silent; None: that was not watched for.
        handing_off: of `owned`, those that are on their way to another worker.
        finished: those whose shard has been processed to its end.
    """

    leases: int
    owned: int
    unowned: int
    abandoned: int | None
    handing_off: int
    finished: int


def summary(seen: Seen) -> Summary:
    """Count them."""
    unfinished = seen.fleet.unfinished
    owned = [lease for lease in unfinished if lease.actual_owner is not None]
    abandoned = sum(lease.lease_key in seen.fleet.abandoned for lease in owned)
    return Summary(
        leases=len(seen.fleet.leases),
        owned=len(owned),
        unowned=len(unfinished) - len(owned),
        abandoned=abandoned if seen.could_tell_abandoned else None,
        handing_off=sum(lease.checkpoint_owner is not None for lease in owned),
        finished=len(seen.fleet.leases) - len(unfinished),
    )


@dataclass(frozen=True, slots=True)
class Explained:
    """What the leader would do with what was seen.

    Args:
        seen: the state.
        plan: of a run that also balances.
        at_once: leases that it would move at its very next look; the others when it balances next.
        balance_s: how often it balances in a fleet that does not change.
        ema_alpha: as the plan was made with.
    """

    seen: Seen
    plan: Plan
    at_once: frozenset[LeaseKey]
    balance_s: float
    ema_alpha: float

    def is_at_once(self, move: Move) -> bool:
        """Whether it would make this move at its next look."""
        return move.lease.lease_key in self.at_once
