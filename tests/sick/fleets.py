"""Sicknesses of whole fleets: workers, tables, credentials, streams."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.errors import AccessDenied, AwsError, Throttled
from tests.sick.network import Refusal
from tests.sick.sickness import Sickness, nothing
from tests.sick.stage import Stage, kill
from tests.simulator.faults.behaviour import Behaviour
from tests.simulator.faults.life import Service
from tests.simulator.loop import current_loop
from tests.simulator.plans.plan import Plan

PLAIN: Final = Plan(shards=4, records_per_s=0.0, events=(), calm_at_s=0.0, ends_at_s=0.0)
DENIED: Final = "User: arn:aws:iam::111122223333:role/orders is not authorized"
EXPIRED: Final = "The security token included in the request is expired"


def denied(operation: str) -> AwsError:
    """As DynamoDB and Kinesis say it."""
    return AccessDenied(f"AccessDeniedException: {DENIED} to perform: {operation}", operation=operation)


def expired(operation: str) -> AwsError:
    """As both say it when credentials are old."""
    return AccessDenied(f"ExpiredTokenException: {EXPIRED}", operation=operation)


def throttled(operation: str) -> AwsError:
    """As both say it."""
    return Throttled("ThrottlingException: Rate exceeded", operation=operation)


def answers(stage: Stage) -> None:
    """AWS refuses nothing any more."""
    stage.answer_all()


def _no_worker(stage: Stage) -> None:
    kill(stage.living)


def _start_two(stage: Stage) -> None:
    stage.fleet.start()
    stage.fleet.start()


def _full(name: str) -> Stage:
    return Stage(name, plan=replace(PLAIN, leases=LeaseSettings(max_leases_for_worker=2)))


def _one_of_two_goes(stage: Stage) -> None:
    kill(stage.living[:1])


def _hang(stage: Stage) -> None:
    for worker in stage.living:
        worker.life.pause()


def _go_on(stage: Stage) -> None:
    for worker in stage.fleet.workers:
        worker.life.resume()


def _deploy_astray(stage: Stage) -> None:
    stage.fleet.change = lambda settings: replace(settings, stream_name="another")
    stage.model.handle("CreateStream", {"StreamName": "another", "ShardCount": 2})
    _deploy(stage)


def _deploy(stage: Stage) -> None:
    for worker in stage.living:
        worker.stop()
        stage.fleet.start()


def _deploy_right(stage: Stage) -> None:
    stage.fleet.change = lambda settings: settings  # those that are started again


async def _restore(stage: Stage) -> None:
    await stage.leases.ensure()


async def _spoil(stage: Stage) -> None:
    for row in stage.leases_rows()[:1]:
        await stage.leases.put({**row, "leaseCounter": "many"})


async def _repair(stage: Stage) -> None:
    for row in stage.leases_rows():
        if row["leaseCounter"] == "many":
            await stage.leases.put({**row, "leaseCounter": 1000})


class _BackedUp(Stage):
    """Its lease table is backed up in its first minutes."""

    async def begin(self) -> None:
        """As others do."""
        await super().begin()
        current_loop().after(60.0, self._back_up)

    def _back_up(self) -> None:
        self.backup = self.leases_rows()

    async def restore(self) -> None:
        """The rows of the backup, as they were."""
        for row in self.backup:
            await self.leases.put(row)


async def _restore_backup(stage: Stage) -> None:
    """What comes again is more than is done between two looks."""
    assert isinstance(stage, _BackedUp)
    stage.children.behaviour = Behaviour(process_s=(20.0, 30.0))
    await stage.restore()


async def _restore_backup_of_stopped(stage: Stage) -> None:
    kill(stage.living)
    await _restore_backup(stage)
    _start_two(stage)


def refuses(*refusals: Refusal) -> partial[None]:
    """From now on."""
    return partial(_refuse, refusals)


def _refuse(refusals: tuple[Refusal, ...], stage: Stage) -> None:
    stage.refuse(*refusals)


_RESTORED: Final = Sickness(
    name="the lease table is restored from a backup",
    broken="Somebody has restored the lease table under a running fleet: what came after the backup comes again.",
    stage=_BackedUp,
    breaks=_restore_backup,
    heals=nothing,
    begins_s=1200.0,
    alert="KclCheckpointsWentBack",
    words=(("watch", "checkpoints went back .*0"),),
    do="Nothing, if it was meant. Else see who did it; `kcl-daemon leases skip` moves checkpoints on.",
    ends_within_s=420.0,
)


def steps(hours: float) -> partial[None]:
    """The date of the first worker jumps."""
    return partial(_step, 3600.0 * hours)


def _step(seconds: float, stage: Stage) -> None:
    stage.fleet.workers[0].clock.step_wall(seconds)


FLEETS: Final = (
    Sickness(
        name="no worker at all",
        broken="All workers are gone, and nobody starts them again.",
        breaks=_no_worker,
        heals=_start_two,
        alert="KclShardsUnread",
        also=frozenset({"KclNoWorkerLeft", "KclNothingCheckpointed"}),
        words=(
            ("watch", r"4 of 4 open shards are read by nobody; 0 workers live"),
            ("watch", "silent owner|no owner"),
        ),
        do="Start the workers, and find out who stopped them: the service manager, the cluster, a deploy.",
        daily=True,
    ),
    Sickness(
        name="half of the shards have no room",
        broken="One of two workers is gone, and `maxLeasesForWorker` leaves the other no room.",
        stage=_full,
        breaks=_one_of_two_goes,
        heals=lambda stage: stage.fleet.start(),
        alert="KclShardsUnread",
        also=frozenset({"KclLeasesWithoutWorker", "KclNothingCheckpointed"}),
        words=(
            ("watch", "2 of 4 open shards are read by nobody"),
            ("page", "nobody reads .*(silent|no) owner"),
            ("log", "leases_without_worker"),
        ),
        do="Start a worker, or raise `maxLeasesForWorker`.",
        daily=True,
    ),
    Sickness(
        name="the lease table refuses UpdateItem",
        broken="No worker may change rows of the lease table: a policy lacks `dynamodb:UpdateItem`.",
        breaks=refuses(Refusal(denied, Service.DYNAMODB, ("UpdateItem",))),
        heals=answers,
        alert="KclShardsUnread",
        also=frozenset({"KclLeasesLost", "KclWithoutLeader", "KclLeaseRenewalLate"}),
        words=(
            ("watch", "4 of 4 open shards are read by nobody"),
            ("log", "AccessDenied"),
            ("status", "leader nobody for"),
        ),
        do="Correct the policy: `kcl-daemon iam-policy app.properties` prints it. Then it goes on by itself.",
        daily=True,
    ),
    Sickness(
        name="DynamoDB refuses everything",
        broken="The workers may do nothing in DynamoDB.",
        breaks=refuses(Refusal(denied, Service.DYNAMODB)),
        heals=answers,
        alert="KclShardsUnread",
        also=frozenset({"KclLeasesLost", "KclWithoutLeader", "KclLeaseRenewalLate"}),
        words=(
            ("watch", "4 of 4 open shards are read by nobody"),
            ("log", "AccessDenied"),
            ("status", "leader nobody for"),
        ),
        do="Correct the policy: `kcl-daemon iam-policy app.properties` prints it.",
    ),
    Sickness(
        name="credentials are expired",
        broken="AWS refuses the credentials of the workers.",
        breaks=refuses(Refusal(expired)),
        heals=answers,
        alert="KclShardsUnread",
        also=frozenset({"KclLeasesLost", "KclWithoutLeader", "KclLeaseRenewalLate", "KclShardStalled"}),
        words=(("watch", "4 of 4 open shards are read by nobody"), ("log", EXPIRED)),
        do="Renew them, or repair what renews them (the role of the host or pod).",
    ),
    Sickness(
        name="the watcher is blind",
        broken="The watcher may not read the tables.",
        breaks=refuses(Refusal(denied, Service.DYNAMODB, of_all=True, worker="watcher")),
        heals=answers,
        alert="KclWatcherBlind",
        also=frozenset({"KclWatcherSeesPart"}),
        words=(("watch", "the tables cannot be read: .*AccessDenied"),),
        do="Correct its policy: `kcl-daemon iam-policy app.properties --watch` prints it.",
    ),
    Sickness(
        name="nobody can lead",
        broken="Nobody can write the lock row of the leader.",
        breaks=refuses(Refusal(denied, Service.DYNAMODB, ("UpdateItem", "PutItem"), "CoordinatorState")),
        heals=answers,
        alert="KclWithoutLeader",
        words=(("log", "leader_lock_unreachable"), ("status", "leader nobody for")),
        do="Check permissions, capacity and network of the coordinator table.",
        daily=True,
    ),
    Sickness(
        name="workers hang",
        broken="The processes are there and do nothing, as in a deploy that hangs or on a frozen host.",
        breaks=_hang,
        heals=_go_on,
        alert="KclShardsUnread",
        also=frozenset({"KclNoWorkerLeft", "KclNothingCheckpointed", "KclLeasesLost", "KclLeaseRenewalLate"}),
        words=(
            ("watch", "4 of 4 open shards are read by nobody; 0 workers live"),
            ("watch", "has not renewed its lease for .*, and does not report"),
        ),
        do="Restart them; see what the host does.",
    ),
    Sickness(
        name="DynamoDB throttles",
        broken="The lease table has too little capacity: most writes are refused.",
        breaks=refuses(Refusal(throttled, Service.DYNAMODB, ("UpdateItem",), share=0.9)),
        heals=answers,
        alert="KclDynamoDbThrottled",
        also=frozenset({"KclLeasesLost", "KclWithoutLeader", "KclLeaseRenewalLate", "KclShardsUnread"}),
        words=(("log", "table_throttled"),),
        do="Switch the table to on-demand, or raise its capacity and that of its index.",
        ends_within_s=720.0,
    ),
    Sickness(
        name="a deploy with the wrong stream",
        broken="All workers are deployed with a `streamName` of another application.",
        breaks=_deploy_astray,
        heals=_deploy_right,
        alert="KclShardsUnread",
        also=frozenset({"KclNoWorkerLeft", "KclNothingCheckpointed"}),
        words=(("end", "belong to"), ("watch", "0 workers live")),
        do="Correct `streamName` or `applicationName`; nothing was changed.",
    ),
    Sickness(
        name="the lease table is deleted",
        broken="Somebody has deleted the lease table under a running fleet.",
        breaks=lambda stage: stage.leases.drop(),
        heals=_restore,
        alert="KclWatcherBlind",
        also=frozenset(
            {
                "KclLeasesLost",
                "KclWithoutLeader",
                "KclLeaseRenewalLate",
                "KclShardsUnread",
                "KclWatcherSeesPart",
            }
        ),
        words=(("watch", "the tables cannot be read: .*does not exist"), ("log", "does not exist")),
        do="Restore the table from a backup (point-in-time recovery), or start anew: checkpoints are lost.",
        ends_within_s=240.0,
    ),
    _RESTORED,
    replace(
        _RESTORED,
        name="the lease table of a stopped fleet is restored",
        broken="The lease table was restored while no worker ran: what came after the backup comes again.",
        breaks=_restore_backup_of_stopped,
    ),
    Sickness(
        name="the row of a lease cannot be read",
        broken="Somebody has edited a row of the lease table by hand, and wrongly.",
        breaks=_spoil,
        heals=_repair,
        alert="KclShardsUnread",
        also=frozenset({"KclLeasesLost", "KclRowsMalformed"}),
        words=(
            ("watch", "the row of its lease cannot be read"),
            ("page", "the row of its lease cannot be read"),
            ("log", "lease_row_malformed"),
        ),
        do="Repair the row: `kcl-daemon leases list` names it with its problem.",
    ),
    Sickness(
        name="one worker does not reach Kinesis",
        broken="The network of one host lets nothing through to Kinesis.",
        breaks=lambda stage: stage.living[0].life.cut_off(Service.KINESIS),
        heals=lambda stage: stage.living[0].life.reconnect(),
        alert="KclShardStalled",
        also=frozenset({"KclShardsUnread"}),
        words=(
            ("page", "makes? no progress: kinesis for .*no answer"),
            ("watch", "AWS refuses its reads, or does not answer"),
        ),
        do="Repair the network of the host, or stop its worker: others take its shards.",
    ),
    Sickness(
        name="the clock of a worker is ahead",
        broken="The clock of one host is two hours ahead: its dates in the log, letters and tables are wrong.",
        breaks=steps(2.0),
        heals=steps(-2.0),
        alert="KclClockWrong",
        words=(
            ("page", "the clock of this host is .* ahead of that of AWS"),
            ("status", "the clock of this host is .* ahead of that of AWS"),
            ("log", "clock_is_wrong"),
        ),
        do="Set the clock of this host (NTP).",
        daily=True,
    ),
    Sickness(
        name="the clock of a worker is behind",
        broken="The clock of one host is two hours behind: its reports look old to others.",
        breaks=steps(-2.0),
        heals=steps(2.0),
        alert="KclClockWrong",
        words=(
            ("page", "the clock of this host is .* behind that of AWS"),
            ("status", "the clock of this host is .* behind that of AWS"),
            ("log", "clock_is_wrong"),
        ),
        do="Set the clock of this host (NTP).",
        daily=True,
    ),
)
