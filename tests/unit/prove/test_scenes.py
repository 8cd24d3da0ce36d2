"""What scenes cost, need and leave out; the template of the FIS experiment; calls read from a status page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from kcl_prove.fleet import calls_of
from kcl_prove.inventory import Item
from kcl_prove.parts import BudgetReached, Options, ProveError, Size, Usage
from kcl_prove.prices import cost
from kcl_prove.scenes import SCENES, fis
from kcl_prove.scenes.forms import header, with_schema
from kcl_prove.scenes.traffic import Traffic, reads_of, writes_of
from tests.unit.prove.accounts import RUN_ID, account, stage_in

pytestmark = pytest.mark.anyio

SIZE = Size(records=1_000, workers=2, shards=4, seconds=60)
ON_AWS = Options("us-east-1", {}, SIZE)
LOCAL = replace(ON_AWS, endpoints={"kinesis": "http://127.0.0.1:1", "glue": "http://127.0.0.1:1"})
PLAYED = {
    *("polling", "fan-out", "reshard", "kill-worker", "kill-leader", "pause-worker", "rolling-deploy"),
    *("single-table", "large-records", "glue", "on-demand"),
}


def scene(name: str) -> Traffic:
    found = next(each for each in SCENES if each.name == name)
    assert isinstance(found, Traffic)
    return found


def test_names_are_unique_and_make_names_of_streams() -> None:
    assert len({each.name for each in SCENES}) == len(SCENES)
    assert all(each.name.replace("-", "").isalnum() and each.title for each in SCENES)


@pytest.mark.parametrize("options", [ON_AWS, LOCAL])
def test_without_more_options_java_and_fis_are_left_out(options: Options) -> None:
    assert {each.name for each in SCENES if not each.left_out(options)} == PLAYED


def test_with_their_options_they_are_played_on_aws_alone() -> None:
    asked = replace(ON_AWS, java_classpath="jars/*", fis_role="arn:aws:iam::1:role/fis")
    assert not [each.name for each in SCENES if each.left_out(asked)]
    reasons = {each.name: each.left_out(replace(asked, endpoints=LOCAL.endpoints)) for each in SCENES}
    assert {name for name, reason in reasons.items() if reason} == {"java", "fis"}


def test_without_an_endpoint_of_glue_its_scene_is_left_out() -> None:
    assert "Glue" in scene("glue").left_out(replace(LOCAL, endpoints={"kinesis": "http://127.0.0.1:1"}))


def test_polling_pays_for_shards_records_and_tables() -> None:
    usage = scene("polling").usage(SIZE)
    assert (usage.shard_hours, usage.put_units, usage.fan_out_shard_hours) == (4, 1_000, 0)
    assert usage.dynamodb_writes == writes_of(4, 2, 3.5, 60)
    assert usage.dynamodb_reads == reads_of(2, 3.5)


def test_each_scene_pays_for_the_usage_it_adds() -> None:
    assert scene("fan-out").usage(SIZE).fan_out_shard_hours == 4
    assert scene("reshard").usage(SIZE).shard_hours == 4 + 3
    large = scene("large-records").usage(SIZE)
    assert large.put_units == 8 * 410
    on_demand = scene("on-demand").usage(SIZE)
    assert (on_demand.on_demand_stream_hours, on_demand.put_units) == (1, 0)
    assert on_demand.on_demand_in_gb == 1_000 * 1024 / 2**30
    assert scene("fis").usage(SIZE).fis_action_minutes == 5


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 256), st.floats(1, 3600))
def test_the_stream_and_what_is_beside_it_are_the_whole(
    records: int, workers: int, shards: int, seconds: float
) -> None:
    size = Size(records, workers, shards, seconds)
    for each in SCENES:
        assert isinstance(each, Traffic)
        hours = Usage(on_demand_stream_hours=1) if each.is_on_demand else Usage(shard_hours=shards)
        assert cost(each.usage(size)) == pytest.approx(cost(hours + each.beside_stream(size)))
        assert cost(each.usage(size)) <= cost(
            each.usage(replace(size, records=records * 2, shards=shards + 1))
        )


async def test_a_scene_that_costs_too_much_makes_nothing(tmp_path: Path) -> None:
    with account() as clients:
        stage, inventory, _ = stage_in(clients, tmp_path, most=0.0)
        with pytest.raises(BudgetReached):
            await scene("polling").play(stage)
        assert inventory.items == ()


async def test_a_call_that_fails_is_told_with_the_scene(tmp_path: Path) -> None:
    with account() as clients:
        stage, inventory, _ = stage_in(clients, tmp_path)
        stub = Stubber(clients("glue"))
        stub.add_client_error("create_registry", "AccessDeniedException", "glue:CreateRegistry is missing")
        with stub, pytest.raises(ProveError, match="glue:CreateRegistry"):
            await with_schema(stage)
        assert inventory.items == (Item("schema registry", f"{RUN_ID}-glue"),)


def test_figures_of_an_idle_shard_are_those_of_the_documents() -> None:
    """15 write units a minute for each shard: docs/cost.md."""
    assert writes_of(11, 1, 60, 0) - writes_of(10, 1, 60, 0) == 15 * 60 + 20


ROLE = "arn:aws:iam::123456789012:role/"


def template(role: str | None) -> dict[str, Any]:
    stream = "arn:aws:kinesis:us-east-1:123456789012:stream/kcl-prove-1"
    return fis.template(
        "kcl-prove-1-fis",
        {"kcl-prove": "kcl-prove-1"},
        fis_role=ROLE + "fis",
        stream_arn=stream,
        own_role=role,
    )


def test_the_template_is_valid_and_names_what_it_hits() -> None:
    shape = (
        botocore.session.get_session().get_service_model("fis").operation_model("CreateExperimentTemplate")
    )
    made = template(ROLE + "own")
    assert shape.input_shape is not None
    report = ParamValidator().validate(made, shape.input_shape)
    assert not report.has_errors(), report.generate_report()
    assert {each["actionId"] for each in made["actions"].values()} == set(fis.ACTION_NAMES.values())
    for action in made["actions"].values():
        (kind, target), minutes = next(iter(action["targets"].items())), action["parameters"]["duration"]
        expected = {"KinesisStreams": "aws:kinesis:stream", "Roles": "aws:iam:role"}[kind]
        assert (made["targets"][target]["resourceType"], minutes) == (expected, "PT1M")
        assert ("operations" in action["parameters"]) == (kind == "Roles")
    assert made["tags"]["Name"] == "kcl-prove-1-fis"


def test_a_user_has_no_role_to_hit() -> None:
    made = template(None)
    assert set(made["actions"]) == {"throughput", "iterator"}
    assert set(made["targets"]) == {"stream"}


def test_calls_are_read_from_the_page() -> None:
    text = (
        "# TYPE kcl_aws_calls_total counter\n"
        'kcl_aws_calls_total{operation="GetRecords",outcome="success",service="kinesis"} 12.0\n'
        'kcl_aws_calls_total{operation="GetRecords",outcome="failure",service="kinesis"} 0.0\n'
        'kcl_aws_calls_created{operation="GetRecords"} 1.7e9\n'
    )
    wanted = {("kinesis:GetRecords", "success"): 12, ("kinesis:GetRecords", "failure"): 0}
    assert calls_of(text) == Counter(wanted)


def test_the_header_is_that_of_glue() -> None:
    assert header("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63").hex() == "0300b7b4a7f09c964e4aa687fb5de9ef0c63"
