"""An AWS account for tests (moto), and a stage in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from moto import mock_aws

from kcl_prove.inventory import Inventory, Run
from kcl_prove.parts import Options, SceneResult, Size, Usage
from kcl_prove.prices import Budget
from kcl_prove.stage import Clients, Stage

RUN_ID = "kcl-prove-0123abcd"
REGION = "eu-west-1"
ONE_SHARD = Usage(shard_hours=1)
SMALL = Size(records=100, workers=2, shards=2, seconds=5)


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def account() -> Generator[Clients]:
    with mock_aws():
        clients = Clients(boto3.Session("key", "secret", region_name=REGION), {})
        yield clients
        clients.close()


def stage_in(
    clients: Clients,
    folder: Path,
    *,
    most: float = 5.0,
    clock: Clock | None = None,
    endpoints: Mapping[str, str] | None = None,
    said: list[str] | None = None,
) -> tuple[Stage, Inventory, Budget]:
    inventory = Inventory.begin(folder / "state", Run(RUN_ID, REGION, "123456789012"))
    budget = Budget(most, clock or Clock())
    options = Options(REGION, endpoints or {}, SMALL)
    say = ([] if said is None else said).append
    return Stage(clients, options, inventory, budget, folder=folder, say=say), inventory, budget


@dataclass(frozen=True, slots=True)
class TinyScene:
    """Makes a stream, and does what it is told."""

    name: str = "tiny"
    title: str = "a record goes in"
    actions: frozenset[str] = frozenset()
    costs: Usage = ONE_SHARD
    why_not: str = ""
    act: Callable[[Stage], Awaitable[SceneResult]] | None = None

    def usage(self, size: Size) -> Usage:
        return self.costs

    def left_out(self, options: Options) -> str:
        return self.why_not

    async def play(self, stage: Stage) -> SceneResult:
        stream = await stage.create_stream(self.name, shards=1)
        stage.say(f"{stream} is there")
        if self.act is not None:
            return await self.act(stage)
        return SceneResult(self.name, passed=True, written=5, delivered=5, requests={"kinesis:PutRecords": 1})
