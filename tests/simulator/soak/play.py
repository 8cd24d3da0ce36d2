"""An hour and more of one worker under load and faults, and what it takes in memory: it must not grow.

Owns the course: calm start, trouble with a fifth of all calls, a rest after five minutes and one at the end, of two or three
minutes each, in which the footprint is taken. The worker is production's (`app.build`) with its whole record path from
`GetRecords` to the child's line, leases, checkpoints and metrics; Kinesis is the one behind the demo. Not covered, as it is
not there in virtual time: sockets, TLS, pipes, threads, the AWS SDK (`tests/process/test_soak.py`). Nor are reshards and
aggregates.

Everything runs in one process, so that the footprint is of all of it: nothing on the side of the truth may grow either.
Records number themselves, and the stream is trimmed behind the checkpoints.

    python -m tests.simulator.soak.play --shards 64 --minutes 60 [--fan-out] [--trace]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon.config.retrieval import RetrievalMode, RetrievalSettings
from kcl_daemon.ports import Kinesis, Statistic, Tables
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.faults.life import Life, Service
from tests.simulator.faults.network import Fate, Network, Trouble
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.fleet.workers import Fleet, worker_settings
from tests.simulator.loop import now, run_virtual
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.simulator.plans.plan import Plan
from tests.simulator.soak.account import SoakAccount
from tests.simulator.soak.figures import Figures, Footprint, Tracer, taken
from tests.simulator.trace import Trace
from tests.simulator.violation import Violation

# A fifth of all calls: refused, lost on the way, answered to nobody, late.
TROUBLE: Final = {
    Service.KINESIS: Trouble(
        throttled=0.08, lost=0.03, unanswered=0.03, slow=0.05, expired=0.02, cut=0.05, slow_s=(0.5, 5.0)
    ),
    Service.DYNAMODB: Trouble(
        throttled=0.08, lost=0.03, unanswered=0.03, belated=0.02, slow=0.05, slow_s=(0.5, 5.0)
    ),
}
_BEHAVIOUR: Final = Behaviour(When.EACH_BATCH, process_s=(0.02, 0.3))
_CHILD_DIES: Final = 0.0005
_EARLY_S: Final = 300.0
_START_S: Final = 60.0
_REST_MOST_S: Final = 300.0
_SETTLE_S: Final = 30.0
_STOP_S: Final = 60.0
_TICK_S: Final = 1.0
_KEEPS_S: Final = 60.0
_PUT_MOST: Final = 500


@dataclass(frozen=True, slots=True)
class Load:
    """How much.

    Args:
        shards: of the stream.
        minutes: virtual ones.
        records_per_s: of each shard.
        record_bytes: of a record's data.
        mode: how shards are read.
    """

    shards: int = 64
    minutes: float = 60.0
    records_per_s: int = 1
    record_bytes: int = 200
    mode: RetrievalMode = RetrievalMode.POLLING


class CountingNetwork(Network):
    """A network that counts what becomes of calls."""

    def __init__(self, chance: Chance) -> None:
        super().__init__(chance)
        self.faults: Counter[str] = Counter()

    def iterator_expires(self) -> bool:
        """As the network says."""
        expires = super().iterator_expires()
        if expires:
            self.faults["EXPIRED"] += 1
        return expires

    def _fate(self, life: Life, service: Service, *, writes: bool) -> Fate:
        fate = super()._fate(life, service, writes=writes)
        if fate is not Fate.DONE:
            self.faults[fate.name] += 1
        return fate


@dataclass(slots=True)
class CountingCloudWatch:
    """Counts what it is told."""

    reported: int = 0

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """As the port says."""
        self.reported += len(statistics)


class Soak:
    """One soak; `run` inside `run_virtual`.

    Args:
        load: how much.
        kinesis: is given the stream's adapter and gives the one to use; to see that a leak is seen.
        at_rest: called after each footprint.
    """

    def __init__(
        self, load: Load, kinesis: Callable[[Kinesis], Kinesis], at_rest: Callable[[], object]
    ) -> None:
        self.load = load
        self.kinesis = kinesis
        self.at_rest = at_rest
        self._produces = True
        self._chance = Chance("soak")
        self._plan = Plan(
            shards=load.shards,
            records_per_s=0.0,
            events=(),
            calm_at_s=0.0,
            ends_at_s=0.0,
            retrieval=RetrievalSettings(mode=load.mode),
        )
        self._settings = worker_settings("nobody", self._plan)

    async def run(self) -> Figures:
        """Its whole course; Violation where a record is lost, out of order or altered, or nothing comes to rest."""
        model = KinesisModel(lambda: EPOCH_S + now())
        model.handle("CreateStream", {"StreamName": STREAM_NAME, "ShardCount": self.load.shards})
        account = SoakAccount(
            Trace(), lease_table=self._settings.lease_table, record_bytes=self.load.record_bytes
        )
        network, children_plan = (
            CountingNetwork(self._chance.fork("network")),
            ChildrenPlan(behaviour=_BEHAVIOUR),
        )
        fleet = self._fleet(model, network, children_plan, account)
        fleet.cloudwatch = cloudwatch = CountingCloudWatch()
        footprints: list[Footprint] = []
        worker = fleet.start()
        async with anyio.create_task_group() as background:
            background.start_soon(self._produce, model, account)
            await anyio.sleep(_START_S)
            network.trouble = dict(TROUBLE)
            children_plan.mischief = {Mischief.EXIT: _CHILD_DIES}
            await anyio.sleep(_EARLY_S - now())
            footprints.append(await self._footprint(model, account, network))
            await anyio.sleep(max(0.0, self.load.minutes * 60.0 - now()))
            footprints.append(await self._footprint(model, account, network))
            background.cancel_scope.cancel()
        network.calm()
        children_plan.behave()
        worker.stop()
        with anyio.fail_after(_STOP_S):
            await worker.ended.wait()
        early, late = footprints
        return Figures(
            records=account.written,
            repeats=account.repeats,
            calls=sum(network.calls.values()),
            faults=network.faults,
            children=account.children,
            latency_most_s=account.latency_most_s,
            reported=cloudwatch.reported,
            early=early,
            late=late,
        )

    def _fleet(
        self, model: KinesisModel, network: Network, children_plan: ChildrenPlan, account: SoakAccount
    ) -> Fleet:
        settings = self._settings
        return Fleet(
            tables=Tables(
                leases=MemoryTable(settings.lease_table, "leaseKey", has_owner_index=True),
                worker_metrics=MemoryTable(settings.worker_metrics_table, "wid"),
                coordinator=MemoryTable(settings.coordinator_table, "key"),
            ),
            kinesis=self.kinesis(MemoryKinesis(model)),
            fan_out=MemoryFanOut(model),
            network=network,
            children_plan=children_plan,
            deliveries=account,
            observer=account,
            trace=Trace(),
            chance=self._chance.fork("fleet"),
            plan=self._plan,
        )

    async def _produce(self, model: KinesisModel, account: SoakAccount) -> None:
        """Write to each shard every second, and trim what nobody needs any more."""
        while True:
            if self._produces:
                self._put(model, account, self.load.records_per_s)
            model.trim(STREAM_NAME, min(account.done_before_s, EPOCH_S + now() - _KEEPS_S))
            await anyio.sleep(_TICK_S)

    def _put(self, model: KinesisModel, account: SoakAccount, each: int) -> None:
        """Write so many records to each shard."""
        entries = [
            {"Data": account.put(shard_id), "PartitionKey": "k", "ExplicitHashKey": hash_key}
            for shard_id, hash_key in _hash_of_shards(model).items()
            for _ in range(each)
        ]
        for start in range(0, len(entries), _PUT_MOST):
            model.handle(
                "PutRecords", {"StreamName": STREAM_NAME, "Records": entries[start : start + _PUT_MOST]}
            )

    async def _footprint(self, model: KinesisModel, account: SoakAccount, network: Network) -> Footprint:
        """What is taken when everything is done, no call is late and no child has more than one record in hand."""
        self._produces = False
        await _until_done(account)
        network.calm()
        await anyio.sleep(_SETTLE_S)
        self._put(model, account, 1)
        await _until_done(account)
        await anyio.sleep(_KEEPS_S + _SETTLE_S)
        footprint = taken()
        self.at_rest()
        network.trouble = dict(TROUBLE)
        self._produces = True
        return footprint


async def _until_done(account: SoakAccount) -> None:
    """Wait until all that was written is delivered and checkpointed; Violation where that takes too long."""
    deadline_s = now() + _REST_MOST_S
    while not account.all_done:
        if now() > deadline_s:
            undone = {name: shard for name, shard in account.shards.items() if not shard.is_done}
            raise Violation("no_rest", f"not done {_REST_MOST_S:g} s after the last record: {undone}")
        await anyio.sleep(_TICK_S)


def _hash_of_shards(model: KinesisModel) -> dict[str, str]:
    """The first hash of each shard."""
    found: dict[str, str] = {}
    token: object = None
    while True:
        arguments = {"StreamName": STREAM_NAME} if token is None else {"NextToken": token}
        answer: dict[str, object] = model.handle("ListShards", arguments)
        shards = answer["Shards"]
        assert isinstance(shards, list)
        for shard in shards:
            found[shard["ShardId"]] = shard["HashKeyRange"]["StartingHashKey"]
        token = answer.get("NextToken")
        if token is None:
            return found


def soak(
    load: Load,
    *,
    kinesis: Callable[[Kinesis], Kinesis] = lambda kinesis: kinesis,
    at_rest: Callable[[], object] = lambda: None,
) -> Figures:
    """Run a soak in this process."""
    return run_virtual(Soak(load, kinesis, at_rest).run)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=Load().shards)
    parser.add_argument("--minutes", type=float, default=Load().minutes)
    parser.add_argument("--fan-out", action="store_true", help="read by subscriptions")
    parser.add_argument("--trace", action="store_true", help="show where memory grew; several times slower")
    parser.add_argument("--json", action="store_true", help="the figures for a program")
    options = parser.parse_args()
    figures = soak(
        Load(
            shards=options.shards,
            minutes=options.minutes,
            mode=RetrievalMode.FANOUT if options.fan_out else RetrievalMode.POLLING,
        ),
        at_rest=Tracer() if options.trace else lambda: None,
    )
    reported = {
        "shown": figures.shown(),
        "rss_ratio": figures.rss_ratio,
        "grown_per_record": figures.grown_per_record,
    }
    print(json.dumps(reported) if options.json else figures.shown())  # noqa: T201 - a command line


if __name__ == "__main__":
    main()
