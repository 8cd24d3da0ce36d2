"""Sicknesses of children, records and streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kcl_daemon.config.children import FailureSettings
from kcl_daemon.fleet.hold_watch import tell_holds, with_holds
from kcl_daemon.leases.holds import Hold
from tests.sick.fleets import PLAIN, answers, denied, refuses, throttled
from tests.sick.network import Refusal
from tests.sick.sickness import Sickness, nothing
from tests.sick.stage import MIB, Stage, kill
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.behaviour import Behaviour, Mischief, When
from tests.simulator.faults.life import Service
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.plans.plan import Plan
from tests.simulator.rules.landing import LandingPlan
from tests.simulator.scenarios.poison import DEAD_LETTERS

_SLOW: Final = frozenset(
    {"KclShardsUnread", "KclNothingCheckpointed", "KclChildrenFail", "KclShardFails", "KclShardStalled"}
)
_QUICK: Final = Behaviour(process_s=(0.02, 0.1))


def _with(plan: Plan, name: str) -> Stage:
    # What is changed while it is played is of this play alone.
    return Stage(name, plan=replace(plan, children_plan=replace(plan.children_plan)))


def of_plan(plan: Plan) -> partial[Stage]:
    """A stage with this plan."""
    return partial(_with, plan)


def _misbehave(mischief: Mapping[Mischief, float], stage: Stage) -> None:
    stage.children.mischief = mischief


def misbehave(kind: Mischief) -> partial[None]:
    """From now on each child does this at each action."""
    return partial(_misbehave, {kind: 1.0})


def _behave(stage: Stage) -> None:
    stage.children.behave()
    stage.children.poison_every = 0
    stage.children.reject_every = 0


def _behave_anew(stage: Stage) -> None:
    """The program was corrected and is deployed: the daemons start again."""
    _behave(stage)
    stage.children.behaviour = _QUICK
    _deploy(stage)


def _deploy(stage: Stage) -> None:
    for worker in stage.living:
        worker.stop()
        stage.fleet.start()


def _cannot_start(stage: Stage) -> None:
    stage.children.start_fails = 1.0
    for worker in stage.living:
        worker.stop()
        stage.fleet.start()


def _never_checkpoints(stage: Stage) -> None:
    stage.children.behaviour = Behaviour(When.AT_END_ONLY, process_s=(0.02, 0.1))
    for worker in stage.living:
        worker.life.kill()
        stage.fleet.start()


def _delete_stream(stage: Stage) -> None:
    stage.model.handle("DeleteStream", {"StreamName": STREAM_NAME, "EnforceConsumerDeletion": True})


def _create_stream(stage: Stage) -> None:
    stage.model.handle("CreateStream", {"StreamName": STREAM_NAME, "ShardCount": 4})


def _made_anew(stage: Stage) -> None:
    _delete_stream(stage)
    _create_stream(stage)


def _stop_application(stage: Stage) -> None:
    kill(stage.living)
    stage.is_watched = False


def _begin_anew(stage: Stage) -> None:
    """The leases are reset while all are stopped."""
    kill(stage.living)
    stage.leases.drop()
    stage.coordinator.drop()
    for _ in range(stage.workers):
        stage.fleet.start()


async def _pause(stage: Stage) -> None:
    pause = Hold("ann@desk", "looking at a bill", round(1000 * (EPOCH_S + stage.at_s)))
    await tell_holds(stage.coordinator, lambda before: with_holds(before, [pause]), token="pause")


async def _resume(stage: Stage) -> None:
    await tell_holds(stage.coordinator, lambda _before: (), token="resume")


def _poison(stage: Stage) -> None:
    stage.children.poison_every = 7


def _leak(stage: Stage) -> None:
    memory = stage.fleet.memory
    memory.kept_bytes_per_s, memory.since_s = 2 * MIB, stage.at_s


def _leak_no_more(stage: Stage) -> None:
    stage.fleet.memory.kept_bytes_per_s = 0


def _rejects(stage: Stage) -> None:
    stage.children.reject_every = 3


RECORDS: Final = (
    Sickness(
        name="paused and forgotten",
        broken="Somebody has paused the application and does not let it go on.",
        breaks=_pause,
        heals=_resume,
        begins_s=3900.0,
        alert="KclShardsPausedLong",
        lasts_s=1200.0,
        also=frozenset({"KclNothingCheckpointed"}),
        words=(
            ("page", "paused until it is ended, by ann@desk"),
            ("watch", "ann@desk has paused it: looking at a bill .paused"),
            ("status", "paused"),
        ),
        do="Ask who paused it; `kcl-daemon resume app.properties` ends the pause.",
    ),
    Sickness(
        name="children end their lines too early",
        broken="The program writes half a line of the protocol and ends.",
        breaks=misbehave(Mischief.HALF_LINE_AND_EXIT),
        heals=_behave,
        alert="KclShardsUnread",
        also=_SLOW,
        words=(("page", "failing"), ("watch", "its children keep failing"), ("log", "child_failed")),
        do="`child_stderr` in the log says where it ends; correct the program.",
        ends_within_s=240.0,
    ),
    Sickness(
        name="children crash in a loop",
        broken="Each child ends at its first batch.",
        breaks=misbehave(Mischief.EXIT),
        heals=_behave,
        alert="KclShardsUnread",
        also=_SLOW,
        words=(
            ("page", "failing"),
            ("watch", "its children keep failing"),
            ("log", "child_failed"),
        ),
        do="`child_stderr` in the log says where it fails; correct the program. No record is skipped meanwhile.",
        daily=True,
        ends_within_s=240.0,
    ),
    Sickness(
        name="a child cannot be started",
        broken="The command of `executableName` is not there or may not be run, since a deploy.",
        breaks=_cannot_start,
        heals=_behave_anew,
        alert="KclShardsUnread",
        also=_SLOW,
        words=(("page", "no such program"), ("log", "no such program")),
        do="Correct the command; try `kcl-daemon run-child` as the daemon's user.",
        ends_within_s=240.0,
    ),
    Sickness(
        name="a poison record",
        broken="Some records kill each child that gets them, and `poisonRecordPolicy` is `RETRY`.",
        breaks=_poison,
        heals=_behave,
        alert="KclShardsUnread",
        also=_SLOW,
        words=(("page", "failing"), ("watch", "its children keep failing")),
        do="Correct the program, or move the checkpoint past the record: `kcl-daemon leases skip`.",
        ends_within_s=240.0,
    ),
    Sickness(
        name="children hang",
        broken="Each child works on its batch for ever.",
        breaks=misbehave(Mischief.HANG),
        heals=_behave_anew,
        alert="KclShardStalled",
        lasts_s=900.0,
        also=_SLOW,
        words=(("page", "child for"), ("log", "shard_stalled .*cause=child")),
        do="Find out what the child waits for; `childStuckTimeoutMillis` replaces one that hangs.",
        ends_within_s=240.0,
    ),
    Sickness(
        name="children never checkpoint",
        broken="The program processes and stores no checkpoint: a restart would repeat everything.",
        breaks=_never_checkpoints,
        heals=_behave_anew,
        alert="KclNothingCheckpointed",
        lasts_s=1500.0,
        words=(("watch", "oldest unread record"),),
        do="Let it checkpoint after each batch or by time; see `checkpoint_refused` in the log.",
    ),
    Sickness(
        name="Kinesis denies",
        broken="The workers may not read the stream.",
        breaks=refuses(Refusal(denied, Service.KINESIS)),
        heals=answers,
        alert="KclShardsUnread",
        also=_SLOW | {"KclFallsBehind"},
        words=(
            ("page", "makes? no progress: kinesis for .*AccessDenied"),
            ("log", "AccessDenied"),
            ("watch", "AWS refuses its reads"),
        ),
        do="Correct the policy: `kcl-daemon iam-policy app.properties` prints it.",
        daily=True,
    ),
    Sickness(
        name="reads are throttled",
        broken="Others read the stream too: each read of this application is refused.",
        breaks=refuses(Refusal(throttled, Service.KINESIS, ("GetRecords",))),
        heals=answers,
        alert="KclShardStalled",
        also=_SLOW,
        words=(("page", "kinesis for"),),
        do="Read with enhanced fan-out (`retrievalMode=FANOUT`), or add shards.",
    ),
    Sickness(
        name="the stream is deleted",
        broken="The stream does not exist any more.",
        breaks=_delete_stream,
        heals=_stop_application,
        alert="KclShardStalled",
        also=_SLOW | {"KclWatcherSeesPart", "KclFallsBehind"},
        words=(
            ("page", "not found"),
            ("log", "stream_gone"),
            ("watch", "the shards of .* are not known"),
        ),
        do="Decide: stop the application, or create the stream again and reset its leases.",
    ),
    Sickness(
        name="the stream is made anew",
        broken="The stream was deleted and created again under its name: the checkpoints are of the former one.",
        breaks=_made_anew,
        heals=_begin_anew,
        alert="KclShardsUnread",
        also=_SLOW | {"KclFallsBehind"},
        words=(("watch", "the tables belong to the stream"), ("watch", "other stream")),
        do="Stop all workers, `kcl-daemon leases reset app.properties --to TRIM_HORIZON`, start them.",
        ends_within_s=240.0,
    ),
    Sickness(
        name="a third of the records is rejected",
        broken="The processor rejects records: they become letters.",
        stage=of_plan(replace(PLAIN, failures=FailureSettings(dead_letters=DEAD_LETTERS.dead_letters))),
        breaks=_rejects,
        heals=_behave,
        alert="KclRecordsRejected",
        lasts_s=1200.0,
        words=(("status", "rejected"),),
        do="Read the letters (`kcl-daemon letters`); correct the processor or the producer.",
        ends_within_s=900.0,
    ),
    Sickness(
        name="letters cannot be stored",
        broken="`deadLetterDestination` takes nothing while records are rejected.",
        stage=of_plan(
            replace(
                PLAIN,
                failures=FailureSettings(dead_letters=DEAD_LETTERS.dead_letters),
                letters_away_s=((180.0, 780.0),),
            )
        ),
        breaks=_rejects,
        heals=_behave,
        alert="KclShardStalled",
        also=_SLOW | {"KclRecordsRejected"},
        words=(("page", "dead letters for"), ("log", "dead_letter_not_stored")),
        do="See the error: permissions, network, free space, size limits. It goes on by itself.",
    ),
    Sickness(
        name="the letter of a poison record cannot be stored",
        broken="A poison record is found, and `deadLetterDestination` takes no letter: the shard waits at it.",
        stage=of_plan(replace(PLAIN, failures=DEAD_LETTERS, letters_away_s=((180.0, 780.0),))),
        breaks=_poison,
        heals=_behave,
        alert="KclShardStalled",
        also=_SLOW | {"KclRecordsPutAside"},
        words=(("page", "dead letters for .*file:dead.jsonl"), ("log", "dead_letter_not_stored")),
        do="See the error: permissions, network, free space, size limits. It goes on by itself; correct the program.",
    ),
    Sickness(
        name="nothing lands, and no lander says so",
        broken="The landing store takes nothing more, and the lander hangs at it.",
        stage=of_plan(replace(PLAIN, landing=LandingPlan(full_s=((180.0, 1680.0),)))),
        breaks=nothing,
        heals=nothing,
        alert="KclNothingCheckpointed",
        lasts_s=1500.0,
        words=(("watch", "oldest unread record"),),
        do="Find out what the lander waits for: `lander_output` in the log. `landing_store_waits` names a store that refuses.",
    ),
    Sickness(
        name="children say the wrong thing",
        broken="Each child answers another action than it was given.",
        breaks=misbehave(Mischief.WRONG_STATUS),
        heals=_behave,
        alert="KclShardsUnread",
        also=_SLOW,
        words=(("page", "broke the protocol"),),
        do="Repair the client library of the program, or take another version.",
        ends_within_s=240.0,
    ),
    Sickness(
        name="the memory of a child grows",
        broken="The program keeps two MiB a second of what it gets.",
        breaks=_leak,
        heals=_leak_no_more,
        alert="KclChildMemoryGrows",
        lasts_s=900.0,
        words=(("status", "700 MiB"),),
        do="Find what the program keeps; `childMemoryLimitBytes` ends a child before the memory of the host ends.",
        daily=True,
    ),
)
