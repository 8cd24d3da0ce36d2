from __future__ import annotations

import signal
from typing import Final

import anyio

from kcl_local.demo.check import monotonic_s
from kcl_prove.scenes.traffic import READING_WITHIN_S, Play

_FAULT_AT: Final = 0.3
_SPLIT_AT: Final = 0.25
_MERGE_AT: Final = 0.6
_AWAKE_S: Final = 2.0


async def split_and_merge(play: Play) -> None:
    await play.at(_SPLIT_AT)
    parent = await play.stream.split()
    await play.at(_MERGE_AT)
    pair = await play.stream.merge()
    play.notes.append(
        f"split {parent.shard_id if parent else 'nothing'}, "
        f"merged {' and '.join(shard.shard_id for shard in pair) if pair else 'nothing'}"
    )
    if parent is None or pair is None:
        play.missed.append("the stream had nothing to split, or nothing to merge: use more shards")


async def kill_a_worker(play: Play) -> None:
    await play.at(_FAULT_AT)
    victim = await play.follower()
    owned = await play.owned_by(victim)
    await play.fleet.kill(victim)
    play.notes.append(f"killed {victim.name}, owner of {len(owned)} shards; its last calls are not counted")
    await play.taken_from(victim)


async def kill_the_leader(play: Play) -> None:
    await play.at(_FAULT_AT)
    victim = await play.fleet.leader()
    if victim is None:
        play.missed.append("nobody led, so no leader was killed")
        return
    await play.fleet.kill(victim)
    began_s = monotonic_s()

    async def another_leads() -> bool:
        return await play.fleet.leader() is not None

    if await play.until(another_leads, READING_WITHIN_S):
        play.notes.append(
            f"killed the leader {victim.name}; another led after {monotonic_s() - began_s:.1f} s"
        )
    else:
        play.missed.append(f"no worker led within {READING_WITHIN_S:g} s of the leader's death")
    await play.taken_from(victim)


async def pause_a_worker(play: Play) -> None:
    await play.at(_FAULT_AT)
    victim = await play.follower()
    owned = await play.owned_by(victim)
    victim.process.signal(signal.SIGSTOP)
    try:
        play.notes.append(
            f"stopped {victim.name}, owner of {len(owned)} shards, with SIGSTOP, past its leases"
        )
        await play.taken_from(victim)
    finally:
        victim.process.signal(signal.SIGCONT)
    await anyio.sleep(_AWAKE_S)


async def deploy_one_by_one(play: Play) -> None:
    old = play.fleet.running
    for number, worker in enumerate(old):
        await play.at(0.1 + 0.8 * number / len(old))
        await play.fleet.start()
        await play.fleet.stop(worker)
        await play.taken_from(worker)
    play.notes.append(f"replaced {len(old)} workers, one by one")
