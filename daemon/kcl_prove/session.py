from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import boto3
import orjson
from botocore.exceptions import BotoCoreError

from kcl_local import REGION
from kcl_local.demo.stream import local_session
from kcl_prove.inventory import Inventory, Item, Run
from kcl_prove.local import local_endpoints
from kcl_prove.parts import Options, ProveError
from kcl_prove.permissions import Caller, caller_of, missing_actions, needed_actions, policy
from kcl_prove.prices import Budget
from kcl_prove.removal import NotRemoved, remove_all
from kcl_prove.report import Account, Environment, document, summary, write
from kcl_prove.runner import SIZES, Played, planned_usage, play_all
from kcl_prove.stage import NAME_STARTS, Clients, Scene, Stage

_AWS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".api.amazonwebservices.com.cn")


class NotBegun(ProveError):
    """Nothing was made."""


@dataclass(frozen=True, slots=True)
class Request:
    """`most_dollars`: infinity where nothing is charged."""

    scenes: Sequence[Scene]
    state: Path
    report: Path
    size_name: str
    most_dollars: float
    region: str | None = None
    profile: str | None = None
    is_local: bool = False
    java: str | None = None
    fis_role: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def options(self, region: str, endpoints: Mapping[str, str]) -> Options:
        return Options(region, endpoints, SIZES[self.size_name], self.java, self.fis_role, self.most_dollars)


def aws_clients(profile: str | None, region: str | None) -> Clients:
    """ProveError without a region or with an unknown profile. Makes no call."""
    try:
        # boto3 alone of all SDKs does not look at AWS_REGION.
        session = boto3.Session(profile_name=profile, region_name=region or os.environ.get("AWS_REGION"))
    except BotoCoreError as error:
        raise ProveError(f"{error}; see ~/.aws/config, or try `kcl-daemon prove --local`") from error
    if not session.region_name:
        raise ProveError("no region is set; use --region or AWS_REGION")
    return Clients(session, {})


def clients_of(run: Run, profile: str | None) -> Clients:
    return Clients(local_session(), run.endpoints) if run.endpoints else aws_clients(profile, run.region)


async def checked_caller(clients: Clients, request: Request, scenes: Sequence[Scene]) -> Caller:
    """ProveError names each permission that is missing, with a policy to paste."""
    caller = await caller_of(clients, str(clients.session.region_name), request.fis_role)
    needed = needed_actions(scenes, caller)
    missing = await missing_actions(clients, needed, caller)
    if missing:
        text = orjson.dumps(policy(missing, caller), option=orjson.OPT_INDENT_2).decode()
        names = "\n".join(f"  {name}" for name in missing)
        raise ProveError(
            f"these permissions are missing, so nothing was made:\n{names}\nA policy that adds them:\n{text}"
        )
    return caller


async def begun(
    request: Request, run_id: str, say: Callable[[str], None]
) -> tuple[Clients | None, Inventory]:
    """NotBegun. The clients are None on local endpoints, which do not run yet."""
    try:
        if request.is_local:
            return None, Inventory.begin(request.state, Run(run_id, REGION))
        clients = aws_clients(request.profile, request.region)
        region = str(clients.session.region_name)
        options = request.options(region, {})
        say("looking at credentials and permissions ...")
        played = [scene for scene in request.scenes if not scene.left_out(options)]
        caller = await checked_caller(clients, request, played)
        return clients, Inventory.begin(request.state, Run(run_id, region, caller.account))
    except ProveError as error:
        raise NotBegun(str(error)) from error


@asynccontextmanager
async def stage_of(
    request: Request, run_id: str, say: Callable[[str], None]
) -> AsyncGenerator[tuple[Stage, Inventory, Budget]]:
    clients, inventory = await begun(request, run_id, say)
    async with AsyncExitStack() as stack:
        stack.callback(inventory.close)
        folder = _made_folder(inventory)
        if clients is None:
            say("starting a local Kinesis and DynamoDB ...")
            endpoints = await stack.enter_async_context(local_endpoints(folder, request.environment))
            inventory.set_run(replace(inventory.run, endpoints=endpoints))
            clients = Clients(local_session(), endpoints)
        stack.callback(clients.close)
        budget = Budget(request.most_dollars, anyio.current_time)
        options = request.options(inventory.run.region, clients.endpoints)
        yield Stage(clients, options, inventory, budget, folder=folder, say=say), inventory, budget


def _made_folder(inventory: Inventory) -> Path:
    folder = Path(tempfile.gettempdir(), inventory.run.run_id).resolve()
    inventory.add(Item("files", str(folder)))
    folder.mkdir(mode=0o700)
    return folder


async def run(request: Request, say: Callable[[str], None]) -> int:
    """The exit code."""
    run_id = f"{NAME_STARTS}{secrets.token_hex(4)}"
    at = datetime.now(UTC)  # noqa: TID251 - of the real world, for the report
    played, left = Played(), list[NotRemoved]()
    async with stage_of(request, run_id, say) as (stage, inventory, budget):

        async def tidy() -> None:
            left[:] = await remove_all(inventory, stage.client, which=lambda item: item.kind != "files")

        options = stage.options
        where = Environment(
            daemon=await daemon_version(),
            endpoints=endpoints_in_words(stage),
            region=options.region,
            begun=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            size_name=request.size_name,
            size=options.size,
            java=request.java is not None,
            fis=request.fis_role is not None,
        )
        say(f"{run_id} on {where.endpoints} ({where.region}), kcl-daemon {where.daemon}")
        try:
            await play_all(request.scenes, stage, budget, tidy, played)
        finally:
            with anyio.CancelScope(shield=True):
                await tidy()
            say_not_removed(left, say)
            _leave_files(
                stage.folder, inventory, say, are_wanted=any(not each.passed for each in played.results)
            )
        planned = planned_usage([each for each in request.scenes if not each.left_out(options)], options.size)
        found = document(run_id, where, played, Account(planned, budget.used), left)
    try:
        files = write(request.report, found)
    except OSError as error:
        raise ProveError(f"the report cannot be written: {error}") from error
    for line in summary(found):
        if line.startswith("lost "):
            say(f"report          {files[0]}\n                {files[1]}")
        say(line)
    return 0 if found["result"] == "right" else 1


def say_not_removed(left: Sequence[NotRemoved], say: Callable[[str], None]) -> None:
    for each in left:
        say(f"NOT REMOVED: {each.item.kind} {each.item.name}: {each.why}\n  by hand: {each.by_hand}")


def _leave_files(folder: Path, inventory: Inventory, say: Callable[[str], None], *, are_wanted: bool) -> None:
    if are_wanted:
        say(f"the logs of this run stay in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    inventory.removed(Item("files", str(folder)))


async def daemon_version() -> str:
    done = await anyio.run_process([sys.executable, "-m", "kcl_daemon", "--version"], check=False)
    return done.stdout.decode().strip().removeprefix("kcl-daemon ") or "unknown"


def endpoints_in_words(stage: Stage) -> str:
    if stage.options.is_local:
        return "local"
    host = urlsplit(stage.client("kinesis").meta.endpoint_url).hostname or ""
    return "AWS" if host.endswith(_AWS) else "other"
