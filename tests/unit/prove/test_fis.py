"""An FIS experiment: started, waited for, stopped if it goes on; its template is removed, whatever happens."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import boto3
import pytest
from botocore.stub import Stubber

from kcl_local.demo.check import LedgerReader
from kcl_local.demo.stream import DemoStream
from kcl_prove.fleet import Application, Fleet
from kcl_prove.inventory import Item
from kcl_prove.scenes import fis
from kcl_prove.scenes.traffic import Play
from kcl_prove.stage import Clients
from tests.unit.prove.accounts import REGION, RUN_ID, SMALL, stage_in

pytestmark = pytest.mark.anyio

ROLE: Final = "arn:aws:iam::123456789012:role/"
STREAM: Final = f"arn:aws:kinesis:{REGION}:123456789012:stream/orders"
USER: Final = {"Arn": "arn:aws:iam::123456789012:user/me"}
ASSUMED: Final = {"Arn": "arn:aws:sts::123456789012:assumed-role/own/session"}
SUMMARY: Final[Mapping[str, Any]] = {
    "StreamName": "orders",
    "StreamARN": STREAM,
    "StreamStatus": "ACTIVE",
    "RetentionPeriodHours": 24,
    "StreamCreationTimestamp": 0,
    "EnhancedMonitoring": [],
    "OpenShardCount": 1,
}


class Answers:
    """Told before the calls, in their order for each service."""

    def __init__(self, clients: Clients, stack: ExitStack) -> None:
        self.stubbers = {
            name: stack.enter_context(Stubber(clients(name))) for name in ("fis", "kinesis", "sts", "iam")
        }

    def add(self, service: str, method: str, answer: Mapping[str, Any], expected: Any = None) -> None:
        self.stubbers[service].add_response(method, answer, expected)

    def fail(self, service: str, method: str, code: str) -> None:
        self.stubbers[service].add_client_error(method, code)

    def caller(self, *, is_role: bool) -> None:
        self.add("sts", "get_caller_identity", ASSUMED if is_role else USER)
        if is_role:
            role = {"Path": "/", "RoleName": "own", "RoleId": "A" * 16, "Arn": f"{ROLE}own", "CreateDate": 0}
            self.add("iam", "get_role", {"Role": role}, {"RoleName": "own"})

    def made(self, role: str | None) -> None:
        self.add("kinesis", "describe_stream_summary", {"StreamDescriptionSummary": SUMMARY})
        name, tags = f"{RUN_ID}-fis", {"kcl-prove": RUN_ID}
        wanted = fis.template(name, tags, fis_role=f"{ROLE}fis", stream_arn=STREAM, own_role=role)
        self.add("fis", "create_experiment_template", {"experimentTemplate": {"id": "EXT1"}}, wanted)

    def started(self) -> None:
        expected = {"experimentTemplateId": "EXT1", "tags": {"kcl-prove": RUN_ID}}
        self.add("fis", "start_experiment", {"experiment": {"id": "EXP1"}}, expected)

    def state(self, status: str, reason: str = "") -> None:
        told = {"id": "EXP1", "state": {"status": status, "reason": reason}}
        self.add("fis", "get_experiment", {"experiment": told}, {"id": "EXP1"})

    def stopped(self) -> None:
        self.add("fis", "stop_experiment", {}, {"id": "EXP1"})

    def removed(self) -> None:
        self.add("fis", "delete_experiment_template", {}, {"id": "EXT1"})


@contextmanager
def scripted(folder: Path) -> Generator[tuple[Play, Answers, list[Item]]]:
    clients = Clients(boto3.Session("key", "secret", region_name=REGION), {})
    with ExitStack() as stack:
        answers = Answers(clients, stack)
        stage, inventory, _ = stage_in(clients, folder)
        stage.options = replace(stage.options, fis_role=f"{ROLE}fis")
        fleet = Fleet(stage, Application("app", "orders"), folder, AsyncExitStack())
        stream = DemoStream(clients("kinesis"), "orders")
        made: list[Item] = []
        yield Play(stage, stream, fleet, SMALL, LedgerReader(folder), began_s=-1e9), answers, made
        made.extend(inventory.items)
        for stubber in answers.stubbers.values():
            stubber.assert_no_pending_responses()
        assert made == [Item("fis template", f"{RUN_ID}-fis")]
        inventory.close()
        clients.close()


@pytest.mark.parametrize("is_role", [True, False])
async def test_an_experiment_runs_until_it_is_completed(
    is_role: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fis, "_POLL_S", 0.0)
    with scripted(tmp_path) as (play, answers, _):
        answers.caller(is_role=is_role)
        answers.made(f"{ROLE}own" if is_role else None)
        answers.started()
        for status in ("pending", "running", "completed", "completed"):
            answers.state(status)
        answers.removed()
        await fis.make_kinesis_fail(play)
        assert play.missed == []
        assert any("left out" in note for note in play.notes) is not is_role


async def test_a_role_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    with scripted(tmp_path) as (play, answers, _):
        answers.add("sts", "get_caller_identity", ASSUMED)
        answers.fail("iam", "get_role", "AccessDenied")
        answers.made(None)
        answers.started()
        answers.state("failed", "the role cannot be assumed")
        answers.state("failed")
        answers.removed()
        await fis.make_kinesis_fail(play)
        assert play.missed == ["the FIS experiment did not complete"]
        assert any("cannot be assumed" in note for note in play.notes)


async def test_an_experiment_is_stopped_when_its_scene_is_cancelled(tmp_path: Path) -> None:
    with scripted(tmp_path) as (play, answers, _):
        answers.made(None)
        answers.started()
        answers.state("running")
        answers.stopped()
        answers.removed()
        with anyio.CancelScope() as scope:
            async with fis.running_experiment(play, None):
                scope.cancel()
                await anyio.sleep(1)


async def test_a_template_that_cannot_be_started_is_removed(tmp_path: Path) -> None:
    with scripted(tmp_path) as (play, answers, _):
        answers.made(None)
        answers.fail("fis", "start_experiment", "ConflictException")
        answers.removed()
        with pytest.raises(Exception, match="ConflictException"):
            async with fis.running_experiment(play, None):
                pytest.fail("it has not started")


async def test_without_a_failed_call_nothing_was_shown(tmp_path: Path) -> None:
    fleet = Fleet(None, Application("app", "orders"), tmp_path, AsyncExitStack())  # type: ignore[arg-type]
    play = Play(None, None, fleet, SMALL, LedgerReader(tmp_path))  # type: ignore[arg-type]
    await fis.calls_failed(play)
    assert len(play.missed) == 1
    play.missed.clear()
    fleet.calls["kinesis:GetRecords", "throttled"] = 3
    await fis.calls_failed(play)
    assert play.missed == []
    assert play.notes[-1] == "calls that failed: kinesis:GetRecords 3"
