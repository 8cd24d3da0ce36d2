"""The command line: what it costs, what it asks, and that it makes nothing before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import orjson
import pytest
from click.testing import CliRunner, Result
from moto import mock_aws

from kcl_prove.command import command
from kcl_prove.inventory import Inventory, Item, Run, earlier_runs
from kcl_prove.parts import SceneResult, Usage
from kcl_prove.permissions import Caller, probe_arguments
from kcl_prove.scenes import SCENES
from kcl_prove.session import Request, aws_clients
from kcl_prove.stage import Scene, Stage
from tests.unit.prove.accounts import REGION, RUN_ID, TinyScene
from tests.unit.prove.test_permissions import error

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": REGION}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "kcl-daemon" / "prove"


def call(
    *words: str, scenes: Sequence[Scene] = (TinyScene(), TinyScene("other")), answer: str = ""
) -> Result:
    return CliRunner().invoke(command(lambda: scenes), words, input=answer)


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a session, or calls anything, fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("AWS was touched")

    monkeypatch.setattr(boto3, "Session", refuse)
    monkeypatch.setattr("botocore.endpoint.Endpoint.make_request", refuse)
    monkeypatch.setattr("botocore.session.Session.create_client", refuse)


@pytest.mark.usefixtures("no_aws")
@pytest.mark.parametrize(
    "words", [(), ("--local",), ("--size", "large", "--java", "x.jar", "--fis", "arn:x")]
)
def test_an_estimate_touches_nothing(words: tuple[str, ...], state: Path) -> None:
    done = call("--estimate", *words, scenes=SCENES)
    assert done.exit_code == 0, done.output
    assert "dollars in all, by list prices" in done.output
    assert all(scene.name in done.output for scene in SCENES)
    assert not state.exists()


def test_an_estimate_has_each_scene_each_item_and_the_sum() -> None:
    extra = TinyScene("big", costs=Usage(shard_hours=100, put_units=1e6))
    done = call("--estimate", scenes=(TinyScene(), extra, TinyScene("java", why_not="needs --java")))
    assert done.output.splitlines() == [
        "   0.0150  tiny: a record goes in",
        "   1.5140  big: a record goes in",
        "        -  java: left out, needs --java",
        "by item:",
        "   1.5150  101 shard hours",
        "   0.0140  1 million PUT units of 25 KB",
        "     1.53  dollars in all, by list prices (us-east-1, November 2025); other regions cost up to twice as much",
    ]


@pytest.mark.usefixtures("no_aws")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--yes", "--most", "0.02"), "the estimate is 0.03 dollars, above --most 0.02"),
        (("--yes", "--only", "tiny,nobody"), "no such scene: nobody; there are tiny, other"),
        (("--yes", "--without", "tiny,other"), "no scene is left"),
        (("--search",), "--search belongs to --clean"),
        ((), "say --yes"),
    ],
)
def test_a_refused_run_creates_no_file(words: tuple[str, ...], text: str, state: Path) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert text in done.output
    assert not state.exists()


def test_fewer_scenes_cost_less() -> None:
    assert "0.01  dollars" not in call("--estimate").output
    for words in (("--only", "tiny"), ("--without", " other ,")):
        lines = call("--estimate", *words).output.splitlines()
        assert lines[0] == "   0.0150  tiny: a record goes in"
        assert len(lines) == 4


def test_missing_permissions_are_named_with_a_policy_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    calls: list[str] = []

    def answer(self: Any, operation: str, _arguments: object) -> Any:
        service = self.meta.service_model.service_name
        calls.append(operation)
        if operation == "GetCallerIdentity":
            return {"Arn": "arn:aws:iam::123456789012:user/me", "Account": "123456789012"}
        denied = service == "iam" or operation in {"CreateStream", "UpdateItem"}
        raise error("AccessDeniedException" if denied else "ResourceNotFoundException")

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", answer)
    done = call("--yes")
    assert done.exit_code == 2, done.output
    assert "  dynamodb:UpdateItem\n  kinesis:CreateStream\n" in done.output
    assert f'"arn:aws:kinesis:{REGION}:123456789012:stream/kcl-prove-*"' in done.output
    assert '"Action": [\n        "kinesis:CreateStream"\n      ]' in done.output
    assert "DescribeTable" in calls
    assert not state.exists()


def test_without_credentials_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    done = call("--yes")
    assert done.exit_code == 2
    assert "no usable AWS credentials" in done.output
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    assert "no region is set; use --region" in call("--yes").output
    assert "nobody" in call("--yes", "--profile", "nobody").output
    assert not state.exists()


def left_behind(state: Path, account: str = "123456789012") -> None:
    inventory = Inventory.begin(state, Run(RUN_ID, REGION, account))
    for item in (Item("stream", f"{RUN_ID}-a"), Item("table", f"{RUN_ID}-never-made")):
        inventory.add(item)
    inventory.close()
    boto3.client("kinesis", REGION).create_stream(StreamName=f"{RUN_ID}-a", ShardCount=1)


def streams() -> list[str]:
    return boto3.client("kinesis", REGION).list_streams()["StreamNames"]


def test_clean_removes_what_the_file_of_a_crashed_run_names(state: Path) -> None:
    with mock_aws():
        left_behind(state)
        boto3.client("kinesis", REGION).create_stream(StreamName="mine", ShardCount=1)
        done = call("--clean")
        assert done.exit_code == 0, done.output
        assert done.output == f"{RUN_ID}: removed 2 of 2 things in {REGION}\n"
        assert streams() == ["mine"]
        assert earlier_runs(state) == ()
        assert "no run left anything behind" in call("--clean").output


def test_clean_does_nothing_in_another_account(state: Path) -> None:
    with mock_aws():
        left_behind(state, account="999999999999")
        done = call("--clean")
        assert done.exit_code == 1
        assert "it ran in account 999999999999; these credentials are of 123456789012" in done.output
        assert streams() == [f"{RUN_ID}-a"]
        assert len(earlier_runs(state)) == 1


@pytest.mark.parametrize(("words", "left"), [((), 1), (("--yes",), 0)])
def test_a_search_removes_only_what_has_our_tag_without_being_asked(
    words: tuple[str, ...], left: int, state: Path
) -> None:
    name = f"{RUN_ID}-a"
    with mock_aws():
        kinesis = boto3.client("kinesis", REGION)
        for each in (name, f"{RUN_ID}-untagged"):
            kinesis.create_stream(StreamName=each, ShardCount=1)
        kinesis.add_tags_to_stream(StreamName=name, Tags={"kcl-prove": RUN_ID})
        done = call("--clean", "--search", *words)
        assert f"  stream {name}\n  stream {RUN_ID}-untagged (without our tag)" in done.output
        assert len(streams()) == left + 1
        assert ("say --yes" in done.output) == (not words)


def test_a_search_leaves_a_run_at_work_alone(state: Path) -> None:
    with mock_aws():
        boto3.client("kinesis", REGION).create_stream(StreamName=f"{RUN_ID}-a", ShardCount=1)
        inventory = Inventory.begin(state, Run(RUN_ID, REGION, "123456789012"))
        assert "is at work" in call("--clean").output
        assert "nothing is left over here" in call("--clean", "--search", "--yes").output
        inventory.close()
        assert len(streams()) == 1


def test_prove_is_a_command_of_the_daemon() -> None:
    from kcl_daemon.cli import main  # the only one that knows the daemon

    done = CliRunner().invoke(main, ["prove", "--help"])
    assert "--estimate" in done.output
    assert "kcl_prove.scenes" in sys.modules


def test_a_profile_leads_to_its_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = ap-south-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_REGION")
    assert aws_clients("work", None).session.region_name == "ap-south-1"
    assert aws_clients("work", "eu-west-2").session.region_name == "eu-west-2"
    request = Request((), tmp_path, tmp_path, "small", 5.0)
    assert request.options("eu-west-2", {}).is_local is False


def each_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """IAM may not be asked, so each permission is tried in moto's account, but for a call that moto breaks at."""
    monkeypatch.setattr("kcl_prove.permissions._simulated", lambda *_: None)
    monkeypatch.setattr("kcl_prove.permissions.probe_arguments", without_get_records)


def without_get_records(caller: Caller) -> dict[str, Any]:
    return {
        action: each for action, each in probe_arguments(caller).items() if action != "kinesis:GetRecords"
    }


def test_a_run_in_an_account_ends_with_a_report_and_nothing_in_the_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: Path
) -> None:
    made: list[str] = []

    async def act(stage: Stage) -> SceneResult:
        made.extend(streams())
        return SceneResult("tiny", passed=True, written=7, delivered=7, notes=("account 123456789012",))

    each_is_tried(monkeypatch)
    with mock_aws():
        done = call("--yes", "--report", str(tmp_path / "report"), scenes=(TinyScene(act=act),))
        assert done.exit_code == 0, done.output
        assert streams() == []
        assert boto3.client("dynamodb", REGION).list_tables()["TableNames"] == []
    lines = done.output.splitlines()
    assert lines[-1] == "lost 0"
    assert "cost            0.01 dollars by list prices" in done.output
    (data,) = (tmp_path / "report").glob("*.json")
    found = orjson.loads(data.read_bytes())
    assert made == [f"{found['run']}-tiny"]
    assert (found["environment"]["endpoints"], found["environment"]["region"]) == ("AWS", REGION)
    assert found["total"]["delivered"] == 7
    assert b"123456789012" not in data.read_bytes() + data.with_suffix(".html").read_bytes()
    assert earlier_runs(state) == ()
    assert not list(Path(tempfile.gettempdir()).glob(f"{found['run']}*"))


def test_logs_of_what_went_wrong_stay_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: Path
) -> None:
    async def act(stage: Stage) -> SceneResult:
        (stage.folder / "worker.log").write_text("evidence")
        return SceneResult("tiny", passed=True, written=7, delivered=6, lost=1)

    each_is_tried(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with mock_aws():
        done = call("--yes", "--report", str(tmp_path / "report"), scenes=(TinyScene(act=act),))
        assert streams() == []
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "lost 1"
    (log,) = tmp_path.glob("kcl-prove-*/worker.log")
    assert f"the logs of this run stay in {log.parent}" in done.output
    assert earlier_runs(state) == ()


def test_the_canary_says_that_nothing_was_proved_where_there_are_no_credentials() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    root = Path(__file__).parents[3]
    quiet = ["make", "--no-print-directory", "canary"]
    done = subprocess.run(quiet, cwd=root, env=kept, capture_output=True, text=True, timeout=60, check=True)
    assert "nothing was proved" in done.stdout
    dry = subprocess.run(
        [*quiet, "--dry-run"],
        check=True,
        cwd=root,
        env={**kept, "AWS_PROFILE": "x"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "kcl-daemon prove --yes --most 5" in dry.stdout
