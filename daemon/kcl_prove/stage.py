from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local.demo.stream import in_thread, until
from kcl_prove.inventory import Inventory, Item
from kcl_prove.parts import Kind, Options, ProveError, SceneResult, Size, Usage
from kcl_prove.prices import Budget

if TYPE_CHECKING:
    import boto3

TAG: Final = "kcl-prove"
NAME_STARTS: Final = f"{TAG}-"
ACTIVE_WITHIN_S: Final = 600.0
_POLL_LOCAL_S: Final = 0.05
_POLL_S: Final = 1.0
# KCL 3's tables; with one table only the first comes to be.
TABLE_SUFFIXES: Final = ("", "-WorkerMetricStats", "-CoordinatorState")
_CONFIG: Final = Config(
    connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 8}
)


class Clients:
    """Where endpoints are local, a service without one is an error, never AWS."""

    def __init__(self, session: boto3.Session, endpoints: Mapping[str, str]) -> None:
        self.session = session
        self.endpoints = endpoints
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, service: str) -> Any:
        with self._lock:
            if service not in self._known:
                if self.endpoints and service not in self.endpoints:
                    raise ProveError(f"there is no local endpoint of {service}: this needs an AWS account")
                make: Any = self.session.client
                self._known[service] = make(service, endpoint_url=self.endpoints.get(service), config=_CONFIG)
            return self._known[service]

    def close(self) -> None:
        for client in self._known.values():
            client.close()


class Stage:
    """Methods raise ProveError, and BudgetReached before it costs too much."""

    def __init__(
        self,
        clients: Clients,
        options: Options,
        inventory: Inventory,
        budget: Budget,
        *,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.options = options
        self.folder = folder
        self.client = clients
        self.say = say
        self._inventory = inventory
        self._budget = budget

    @property
    def run_id(self) -> str:
        """Such as `kcl-prove-3f9a`."""
        return self._inventory.run.run_id

    @property
    def session(self) -> boto3.Session:
        return self.client.session

    @property
    def tags(self) -> Mapping[str, str]:
        return {TAG: self.run_id}

    async def create_stream(
        self, name: str, *, shards: int | None, max_record_bytes: int | None = None
    ) -> str:
        """Its full name once it is ACTIVE; `shards` None: on demand.

        Its first hour is counted here; the scene counts everything else.
        """
        full = f"{self.run_id}-{name}"
        wanted: dict[str, Any] = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        if shards is not None:
            wanted = {"ShardCount": shards}
        if max_record_bytes is not None:
            wanted["MaxRecordSizeInKiB"] = math.ceil(max_record_bytes / 1024)
        self.spend(Usage(on_demand_stream_hours=1) if shards is None else Usage(shard_hours=shards))
        await self.remember("stream", full)
        kinesis = self.client("kinesis")
        await called("CreateStream", kinesis.create_stream, StreamName=full, Tags=dict(self.tags), **wanted)
        await self._active(full)
        return full

    async def _active(self, name: str) -> None:
        describe = self.client("kinesis").describe_stream_summary

        async def is_active() -> bool:
            answer = await called("DescribeStreamSummary", describe, StreamName=name)
            return bool(answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE")

        if not await until(is_active, ACTIVE_WITHIN_S, _POLL_LOCAL_S if self.options.is_local else _POLL_S):
            raise ProveError(f"stream {name} did not become ACTIVE within {ACTIVE_WITHIN_S:g} s")

    async def remember(self, kind: Kind, name: str) -> None:
        """Call it before it is made."""
        self._inventory.add(Item(kind, name))

    def application(self, name: str) -> str:
        full = f"{self.run_id}-{name}"
        for suffix in TABLE_SUFFIXES:
            self._inventory.add(Item("table", f"{full}{suffix}"))
        return full

    def spend(self, usage: Usage) -> None:
        """Call it before it is used. Hours are counted again as they begin, until the scene ends."""
        self._budget.spend(usage)


class Scene(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def actions(self) -> frozenset[str]:
        """Besides those of every scene."""
        ...

    def usage(self, size: Size) -> Usage: ...

    def left_out(self, options: Options) -> str:
        """Why it cannot be played with these options; empty: it can."""
        ...

    async def play(self, stage: Stage) -> SceneResult:
        """Cancellable; whatever processes it started have then ended."""
        ...


async def called(operation: str, method: Callable[..., Any], **arguments: Any) -> Any:
    """In a thread; ProveError names the operation if it fails."""
    try:
        return await in_thread(method, **arguments)
    except (ClientError, BotoCoreError) as error:
        raise ProveError(f"{operation} failed: {error}") from error
