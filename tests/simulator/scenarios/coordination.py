"""Scenarios of the fleet: what may befall leaders, hand-offs and the owner index.

Owns these draws; `scenarios` lists them with the others. Knows nothing of how a plan is carried out.
"""

from __future__ import annotations

from dataclasses import replace

from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.faults.life import Service
from tests.simulator.plans.draws import Draw, cuts
from tests.simulator.plans.plan import (
    DieInHandoff,
    Kill,
    Kind,
    Pause,
    Plan,
    Planned,
    Side,
    Start,
    StartNamesake,
    StartOnClone,
    Step,
    Stop,
    Where,
    Who,
)


def leader_paused(draw: Draw) -> Plan:
    """SIGSTOP for the leader for longer than its lock lasts; it wakes up and believes that it leads."""
    plan = draw.plan(faults_s=240.0)
    pauses = draw.some(
        lambda: Pause(Who.LEADER, draw.chance.uniform(31.0, 80.0)), count=(1, 3), between_s=(15.0, 150.0)
    )
    kills = draw.some(lambda: draw.kill(3.0, 20.0), count=(0, 1), between_s=(20.0, 200.0))
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 4)), *pauses, *kills))


def worker_cut_off(draw: Draw) -> Plan:
    """Some workers, the leader among them, do not reach DynamoDB for longer than leases last; Kinesis they reach."""
    plan = draw.plan(faults_s=220.0)
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 4)), *cuts(draw, Service.DYNAMODB, (1, 4))))


def handoff_killed(draw: Draw) -> Plan:
    """Workers join, so leases are handed over; either side or the leader dies at any step of it."""
    plan = draw.plan(faults_s=200.0, shards=(3, 10))
    chance = draw.chance
    deaths = draw.some(
        lambda: DieInHandoff(
            step=chance.pick(tuple(Step)),
            side=chance.pick(tuple(Side)),
            after_s=chance.pick((0.0, 0.0, 0.02, 0.5, 2.0)),
            replaced_after_s=chance.pick((0.5, 5.0, 20.0)),
        ),
        count=(2, 6),
        between_s=(0.0, 120.0),
    )
    joins = draw.some(Start, count=(1, 4), between_s=(20.0, 150.0))
    return replace(plan, events=(*draw.arrivals(draw.workers(1, 3)), *deaths, *joins))


def farewell_killed(draw: Draw) -> Plan:
    """Workers stop and announce who is next; either side or the leader dies meanwhile, or the next owner stops as well."""
    plan = draw.plan(faults_s=200.0, shards=(3, 10))
    chance = draw.chance
    moments = [chance.uniform(30.0, 150.0) for _ in range(chance.between(1, 4))]
    stops = [
        Planned(moment + later_s, Stop(draw.target(), chance.uniform(0.0, 8.0)))
        for moment in moments
        # One after the other, both at once, or the second when it has just been named.
        for later_s in (0.0, chance.pick((0.0, 0.05, 0.5, 2.0, 4.0, 30.0)))
    ]
    deaths = [
        Planned(
            max(0.0, moment - 0.1),
            DieInHandoff(
                step=chance.pick((Step.ASKED, Step.ASKED, Step.CHECKPOINTED, Step.PASSED_ON)),
                side=chance.pick(tuple(Side)),
                after_s=chance.pick((0.0, 0.02, 0.5, 2.0, 3.5)),
                replaced_after_s=chance.pick((0.5, 5.0, 20.0)),
            ),
        )
        for moment in moments
        if chance.happens(0.7)
    ]
    return replace(plan, events=(*draw.arrivals(draw.workers(2, 5)), *stops, *deaths))


def standing_by(draw: Draw) -> Plan:
    """Children take twenty seconds to start, and leases move: a shard stands still for a second at most.

    Some workers die, stop, or do not stand by; some are Java's.
    """
    chance = draw.chance
    java = chance.happens(0.2)
    ranges: dict[str, float] = (
        {"faults_s": 330.0, "bound_s": 350.0} if java else {"faults_s": 260.0, "bound_s": 120.0}
    )
    plan = (draw.long_plan if java else draw.plan)(**ranges, shards=(4, 10))
    joins = draw.some(
        lambda: Start(chance.pick((Kind.OURS, Kind.JAVA)) if java else Kind.OURS),
        count=(2, 4),
        between_s=(40.0, 170.0),
    )
    deaths = draw.some(
        lambda: DieInHandoff(
            step=chance.pick(tuple(Step)),
            side=chance.pick(tuple(Side)),
            after_s=chance.pick((0.0, 0.02, 0.5, 5.0, 22.0)),
            replaced_after_s=chance.pick((0.5, 5.0, 20.0)),
        ),
        count=chance.pick(((0, 0), (1, 3))),
        between_s=(30.0, 170.0),
    )
    stops = draw.some(
        lambda: Stop(draw.target(), chance.uniform(0.0, 8.0)),
        count=chance.pick(((0, 0), (1, 2))),
        between_s=(70.0, 230.0),
    )
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 2)), *joins, *deaths, *stops),
        children_plan=ChildrenPlan(import_s=(19.0, 21.0)),
        every_third_waits=chance.happens(0.4),
        handoff_gap_most_s=1.0,
    )


def index_missing(draw: Draw) -> Plan:
    """The owner index cannot be asked for a while: leases are found all the same."""
    plan = draw.plan(faults_s=150.0)
    ready_at_s = draw.chance.uniform(30.0, 150.0)
    kills = draw.some(lambda: draw.kill(0.5, 5.0), count=(0, 2), between_s=(10.0, 140.0))
    joins = Planned(draw.chance.uniform(5.0, 100.0), Start())
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), joins, *kills),
        index_ready_at_s=ready_at_s,
    )


def restart_in_place(draw: Draw) -> Plan:
    """Killed workers are replaced in place after half a second, at once read on, and no other host's leases are touched.

    Process ids come again; some hosts lose power, and some volumes are cloned while their workers live.
    """
    plan = draw.plan(faults_s=170.0, shards=(1, 8))
    chance = draw.chance
    kills = [
        Planned(
            20.0 + 12.0 * number + chance.uniform(0.0, 3.0),
            Kill(
                draw.target(),
                chance.pick((0.5, 0.5, 0.1, 0.9)),
                keeps_name=chance.happens(0.3),
                where=chance.pick(
                    (Where.IN_PLACE, Where.IN_PLACE, Where.IN_PLACE, Where.AFTER_REBOOT, Where.CLONE)
                ),
            ),
        )
        for number in range(chance.between(3, 10))
    ]
    clones = draw.some(lambda: StartOnClone(draw.target()), count=(0, 2), between_s=(15.0, 120.0))
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3), within_s=5.0), *kills, *clones),
        read_again_s=3.0,
        led_again_s=4.0,
    )


def worker_id_twice(draw: Draw) -> Plan:
    """A second process with the worker id of one that lives, on its host or another: one of them stands aside."""
    plan = draw.plan(faults_s=200.0)
    chance = draw.chance
    seconds = draw.some(
        lambda: StartNamesake(draw.target(), same_host=chance.happens(0.5)),
        count=(1, 3),
        between_s=(0.0, 120.0),
    )
    leaving = draw.some(
        lambda: (
            draw.kill(0.5, 5.0) if chance.happens(0.5) else Pause(draw.target(), chance.uniform(5.0, 60.0))
        ),
        count=(0, 2),
        between_s=(30.0, 150.0),
    )
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *seconds, *leaving),
        names_stand_alone=True,
    )


def other_stream(draw: Draw) -> Plan:
    """Workers come whose file names another stream: beside the right ones, of ours or Java's, or while all are down.

    They end at their start, and change no row.
    """
    chance = draw.chance
    java = chance.happens(0.3)
    plan = (
        draw.long_plan(faults_s=330.0, bound_s=350.0, shards=(2, 8))
        if java
        else draw.plan(faults_s=220.0, shards=(2, 8))
    )
    count = draw.workers(1, 3)
    arrivals = (Planned(0.0, Start(Kind.JAVA)),) if java else draw.arrivals(count)
    # Where Java made the leases, only their checkpoints tell: it needs minutes for them.
    first_s = 220.0 if java else 80.0
    down_s = first_s + chance.uniform(20.0, 40.0)
    back = chance.uniform(10.0, 40.0)
    down = [Planned(down_s, Stop(number, back)) for number in range(1 if java else count)]
    strangers = draw.some(lambda: Start(Kind.ASTRAY), count=(1, 3), between_s=(first_s, down_s + back))
    return replace(
        plan,
        events=(*arrivals, *(down if chance.happens(0.5) else ()), *strangers),
        astray_shards=chance.between(1, 8),
    )
