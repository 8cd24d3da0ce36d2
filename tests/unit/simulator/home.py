"""A worker's scripted children, and the daemon's side of a conversation with one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kcl_daemon.leases.lease import ShardId
from kcl_protocol.codec import Echo, Stray, decode_child_line, encode
from kcl_protocol.conversation import LineFramer
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    ChildMessage,
    Initialize,
    ProcessRecords,
    Record,
    Status,
)
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.faults.life import Life
from tests.simulator.faults.ports import RowWrite
from tests.simulator.fleet.children import SimChild, SimChildren
from tests.simulator.loop import run_virtual
from tests.simulator.rules.deliveries import Deliveries
from tests.simulator.rules.truth import Truth
from tests.simulator.trace import Trace

SHARD = ShardId("shard")
INITIALIZE = Initialize(SHARD, "TRIM_HORIZON", 0, extra={"fencingToken": 1})
NUMBERS = ("11", "12", "13", "14")


class Home:
    """A worker's children, one open shard of four records, a lease row that says whatever is set."""

    def __init__(self, children_plan: ChildrenPlan) -> None:
        self.truth = Truth()
        self.truth.shard_created(SHARD, ())
        for number in NUMBERS:
            self.truth.record_written(SHARD, int(number), 0.0, "", "key")
        self.stored = ExtendedSequenceNumber("TRIM_HORIZON")
        self.life = Life("worker")
        self.deliveries = Deliveries(self.truth, self, Trace())
        self.children = SimChildren(
            self.life, children_plan=children_plan, chance=Chance("home"), deliveries=self.deliveries
        )

    def was_passed_by(self, shard_id: str) -> bool:
        return False

    def was_forgotten(self, shard_id: str) -> bool:
        """As the simulator's rows have it."""
        return False

    def checkpoint_of(self, shard_id: str) -> ExtendedSequenceNumber | None:
        return self.stored if shard_id == SHARD else None

    def claimed_with(self, shard_id: str, token: object) -> RowWrite:
        return RowWrite(0.0, "worker", "leases", shard_id, None, {"daemonFence": 1})


class Talk:
    """The daemon's side of the conversation with one child, without any rules."""

    def __init__(self, child: SimChild) -> None:
        self.child = child
        self._framer = LineFramer(1 << 20)
        self.heard: list[ChildMessage | Echo | Stray] = []

    async def say(self, message: Action | CheckpointAnswer) -> None:
        await self.child.send(encode(message))

    async def hear(self) -> ChildMessage | Echo | Stray:
        while not self.heard:
            data = await self.child.receive()
            if not data:
                raise EOFError
            self.heard += [
                decode_child_line(line) for line in self._framer.feed(data) if isinstance(line, bytes)
            ]
        return self.heard.pop(0)


def at_home(children_plan: ChildrenPlan, run: Callable[[Home], Awaitable[None]]) -> None:
    async def main() -> None:
        await run(Home(children_plan))

    run_virtual(main)


def with_child(children_plan: ChildrenPlan, run: Callable[[Home, Talk], Awaitable[None]]) -> None:
    async def at(home: Home) -> None:
        talk = Talk(await home.children.start(SHARD))
        await run(home, talk)

    at_home(children_plan, at)


def records(*numbers: str) -> ProcessRecords:
    return ProcessRecords([Record("", "key", number) for number in numbers], 0)


def well(when: When = When.EACH_BATCH, *, explicit: bool = False) -> ChildrenPlan:
    return ChildrenPlan(Behaviour(when, explicit=explicit))


def naughty(mischief: Mischief) -> ChildrenPlan:
    return ChildrenPlan(Behaviour(), mischief={mischief: 1.0})


async def initialized(talk: Talk) -> None:
    await talk.say(INITIALIZE)
    assert await talk.hear() == Status("initialize")
