from __future__ import annotations

import http.client
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from prometheus_client.parser import text_string_to_metric_families

from kcl_local.demo.processes import Processes, RunningProcess, environment, log_tail
from kcl_local.demo.stream import escaped, executable_name, in_thread
from kcl_prove.parts import ProveError
from kcl_prove.stage import Stage

CHILD: Final = "kcl_prove.child"
OURS: Final = (sys.executable, "-m", "kcl_daemon", "--log-format", "json", "--properties")
END_WITHIN_S: Final = 60.0
_ENDED_WELL: Final = (0, 128 + signal.SIGTERM)  # ours, Java's
_ENDPOINTS: Final = {
    "kinesis": "kinesisEndpoint",
    "dynamodb": "dynamoDBEndpoint",
    "cloudwatch": "cloudWatchClient.endpointOverride",
}
_GLUE: Final = {"glue": "glueClient.endpointOverride"}
_TAGS: Final = ("leaseTableTags", "workerMetricsTags", "coordinatorStateTags")
QUICK: Final = {
    "failoverTimeMillis": "5000",
    "leaderLeaseMillis": "4000",
    "leaderHeartbeatMillis": "1000",
    "workerMetricsReporterFreqInMillis": "1000",
    "leaseAssignmentIntervalMillis": "1000",
    "parentShardPollIntervalMillis": "500",
}
"""So that a proof is short."""
_ADDRESS: Final = re.compile(r"http://([0-9.:]{1,50})")
_FINISHED: Final = "SHARD_END"
_ASK_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Application:
    name: str
    stream: str
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    is_single_table: bool = False


@dataclass(eq=False, slots=True)
class Worker:
    name: str
    process: RunningProcess
    is_expected_to_run: bool = True

    def page(self) -> str | None:
        """HOST:PORT of its status page."""
        lines = self.process.log.read_text("utf-8", "replace").splitlines()
        told = next((line for line in lines if "status_page_served" in line), "")
        found = _ADDRESS.search(told)
        return None if found is None else found[1]


class Fleet:
    """`calls`: of workers that have ended; `silent`: whose count could not be read."""

    def __init__(self, stage: Stage, application: Application, folder: Path, stack: AsyncExitStack) -> None:
        self.workers: list[Worker] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        self.silent: list[str] = []
        self._stage = stage
        self.application = application
        self._folder = folder
        self._stack = stack
        self._processes = Processes()

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_expected_to_run]

    async def start(self, *, program: Sequence[str] = OURS, kind: str = "worker") -> Worker:
        name = f"{kind}-{len(self.workers) + 1}"
        path = self._folder / f"{name}.properties"
        path.write_text(self._properties(name), "ascii")
        process = await self._stack.enter_async_context(
            self._processes.daemon(
                name, path, self._folder / "ledgers", program=program, base=self._environment()
            )
        )
        worker = Worker(name, process)
        self.workers.append(worker)
        return worker

    async def kill(self, worker: Worker) -> None:
        await self._count(worker)
        worker.is_expected_to_run = False
        worker.process.signal(signal.SIGKILL)
        await worker.process.wait()

    async def stop(self, worker: Worker) -> None:
        """ProveError: it did not end well."""
        await self._count(worker)
        worker.is_expected_to_run = False
        code = await worker.process.stop(END_WITHIN_S)
        if code not in _ENDED_WELL:
            raise ProveError(
                f"{worker.name} ended with {code} when it was stopped\n{log_tail(worker.process.log)}"
            )

    async def stop_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            for worker in self.running:
                tasks.start_soon(self.stop, worker)

    def check(self) -> None:
        """ProveError: one has ended that should run."""
        for worker in self.running:
            if worker.process.exit_code is not None:
                raise ProveError(
                    f"{worker.name} ended with {worker.process.exit_code}\n{log_tail(worker.process.log)}"
                )

    async def owners(self) -> dict[str, str | None]:
        """Of shards that are not read to their end."""
        rows = await in_thread(
            self._stage.client("dynamodb").scan, TableName=self.application.name, ConsistentRead=True
        )
        return {
            row["leaseKey"]["S"]: row.get("leaseOwner", {}).get("S")
            for row in rows["Items"]
            if row.get("checkpoint", {}).get("S", _FINISHED) != _FINISHED
        }

    async def leader(self) -> Worker | None:
        name, single = self.application.name, self.application.is_single_table
        answer = await in_thread(
            self._stage.client("dynamodb").get_item,
            TableName=name if single else f"{name}-CoordinatorState",
            Key={"leaseKey" if single else "key": {"S": "Leader"}},
            ConsistentRead=True,
        )
        owner = answer.get("Item", {}).get("ownerName", {}).get("S")
        return next((worker for worker in self.running if worker.name == owner), None)

    async def _count(self, worker: Worker) -> None:
        try:
            page = worker.page()
            text = "" if page is None else await in_thread(_metrics, page)
        except (OSError, http.client.HTTPException):
            text = ""
        found = calls_of(text)
        if found:
            self.calls.update(found)
        else:
            self.silent.append(worker.name)

    def _properties(self, worker: str) -> str:
        options, application = self._stage.options, self.application
        wanted = {**_ENDPOINTS, **(_GLUE if "schemaRegistry" in application.properties else {})}
        urls = {key: options.endpoints[name] for name, key in wanted.items() if name in options.endpoints}
        values = {
            "executableName": executable_name(self._folder, module=CHILD),
            "applicationName": application.name,
            "streamName": application.stream,
            "workerId": worker,
            "regionName": options.region,
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "initialPositionInStream": "TRIM_HORIZON",
            "metricsLevel": "NONE",
            "adminPort": "0",
            **({"metadataTableLayout": "SINGLE"} if application.is_single_table else {}),
            **dict.fromkeys(_TAGS, ",".join(f"{key}={value}" for key, value in self._stage.tags.items())),
            **urls,
            **(QUICK if options.is_local else {}),
            **application.properties,
        }
        return "".join(f"{key} = {escaped(value)}\n" for key, value in values.items())

    def _environment(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self._folder / "state")}
        if self._stage.options.is_local:
            return environment(own)
        profile = self._stage.session.profile_name
        return {**os.environ, **({} if profile == "default" else {"AWS_PROFILE": profile}), **own}


@asynccontextmanager
async def fleet_of(stage: Stage, application: Application, folder: Path) -> AsyncGenerator[Fleet]:
    """None of its processes runs after the block; on the way out of a failure they are killed."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(stage, application, folder, stack)
        try:
            yield fleet
        finally:
            for worker in fleet.workers:
                worker.process.signal(signal.SIGKILL)


def _metrics(page: str) -> str:
    connection = http.client.HTTPConnection(page, timeout=_ASK_WITHIN_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def calls_of(metrics: str) -> Counter[tuple[str, str]]:
    """Of AWS by name, such as `kinesis:GetRecords`, and outcome."""
    calls: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "kcl_aws_calls_total":
                of = sample.labels
                calls[f"{of['service']}:{of['operation']}", of["outcome"]] += int(sample.value)
    return calls
