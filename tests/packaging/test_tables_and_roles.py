"""CloudFormation and Terraform make the tables that the daemon would make, and allow what `iam-policy` says: no more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_daemon.aws import build
from kcl_daemon.aws.tables import TableSpec, creation_request
from kcl_daemon.cli.iam_policy import build_policy
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.row import KEY
from kcl_daemon.metrics import kcl, own
from tests.packaging import cloudformation, terraform
from tests.packaging.dockerfile import ROOT
from tests.unit.config.helpers import read

TEMPLATE: Final = ROOT / "packaging" / "cloudformation" / "kcl-daemon.yaml"
MODULE: Final = ROOT / "packaging" / "terraform"
ACCOUNT: Final = "111122223333"
REGION: Final = "eu-west-1"
MODES: Final = ("FANOUT", "POLLING")
# Rights for what is there already: the tables are made by what we look at here.
TO_MAKE_TABLES: Final = {"dynamodb:CreateTable", "dynamodb:UpdateTable"}
METRICS: Final = ("cloudwatch:PutMetricData", "*")
SCHEMAS: Final = ("glue:GetSchemaVersion", "*")
Tree = dict[str, Any]
Grants = set[tuple[str, str]]


def settings(mode: str = "FANOUT") -> Settings:
    return read(f"regionName = {REGION}\nretrievalMode = {mode}\n").settings


def specs() -> tuple[TableSpec, ...]:
    """As the daemon makes them."""
    given = settings()
    return (
        TableSpec(given.lease_table, KEY, has_owner_index=True),
        TableSpec(given.worker_metrics_table, build._WORKER_KEY),
        TableSpec(given.coordinator_table, build._COORDINATOR_KEY),
    )


def requests() -> dict[str, Tree]:
    return {spec.name: _in_order(dict(creation_request(spec))) for spec in specs()}


def _in_order(request: Tree) -> Tree:
    """Definitions have no order."""
    return {**request, "AttributeDefinitions": sorted(request["AttributeDefinitions"], key=str)}


def table_arn(name: str) -> str:
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"


def grants(
    statements: Iterable[Mapping[str, Any]], action: str = "Action", resource: str = "Resource"
) -> Grants:
    """Who may do what, one pair for each."""

    def listed(value: Any) -> list[str]:
        return [value] if isinstance(value, str) else list(value)

    assert all(each.get("Effect", "Allow") == "Allow" for each in statements)
    return {(may, on) for each in statements for may in listed(each[action]) for on in listed(each[resource])}


def needed(mode: str) -> Grants:
    document = build_policy(settings(mode), ("kinesis", "dynamodb"), account=ACCOUNT)
    return {(may, on) for may, on in grants(document["Statement"]) if may not in TO_MAKE_TABLES}


class Stack:
    """The template with its parameters."""

    def __init__(self, mode: str = "FANOUT", *, schemas: str = "OFF") -> None:
        given = settings()
        template = cloudformation.load(TEMPLATE.read_text("utf-8"))
        tables = dict(
            zip(
                ("LeaseTable", "WorkerMetricsTable", "CoordinatorTable"),
                [spec.name for spec in specs()],
                strict=True,
            )
        )
        values = {
            "AWS::Partition": "aws",
            "AWS::Region": REGION,
            "AWS::AccountId": ACCOUNT,
            "ApplicationName": given.application_name,
            "StreamName": given.stream_name,
            "RetrievalMode": mode,
            "SchemaRegistry": schemas,
            "TrustedService": "ecs-tasks.amazonaws.com",
            "Policy": "policy-arn",
            **{f"{logical}.Arn": table_arn(name) for logical, name in tables.items()},
        }
        self.resources: dict[str, Tree] = cloudformation.Resolver(template, values).resolve(
            template["Resources"]
        )

    def of_kind(self, kind: str) -> list[Tree]:
        return [each["Properties"] for each in self.resources.values() if each["Type"] == kind]


def plan() -> dict[str, Tree]:
    """The Terraform module with its variables."""
    given = settings()
    names = dict(zip(("leases", "worker_metrics", "coordinator"), specs(), strict=True))
    values = {
        "var.application_name": given.application_name,
        "var.stream_arn": f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{given.stream_name}",
        **{f"aws_dynamodb_table.{short}.arn": table_arn(spec.name) for short, spec in names.items()},
    }
    blocks = terraform.load(MODULE)
    wanted = {
        name: each
        for name, each in blocks.items()
        if name.startswith(("aws_dynamodb_table.", "aws_iam_policy_document."))
        and name not in {"aws_iam_policy_document.daemon", "aws_iam_policy_document.trust"}
    }
    return {name: terraform.resolve(each, values) for name, each in wanted.items()}


@pytest.mark.parametrize("template", sorted(TEMPLATE.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_cfn_lint_has_nothing_to_say(template: Path) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("cfn-lint")), "--include-checks", "I", "--", str(template)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_tasks_are_scaled_by_metrics_that_are_sent() -> None:
    policy = cloudformation.load((TEMPLATE.parent / "ecs-scaling.yaml").read_text("utf-8"))["Resources"][
        "AsManyAsWanted"
    ]
    metrics = policy["Properties"]["TargetTrackingScalingPolicyConfiguration"][
        "CustomizedMetricSpecification"
    ]["Metrics"]
    asked = {
        (metric["MetricName"], *(f"{each['Name']}={each['Value']}" for each in metric["Dimensions"]))
        for metric in (each["MetricStat"]["Metric"] for each in metrics if "MetricStat" in each)
    }
    sent = {
        (each.name, f"Operation={each.operation}") for each in (own.WORKERS_WANTED, kcl.ASSIGNMENT_WORKERS)
    }
    assert asked == sent


def test_the_stacks_tables_are_those_that_the_daemon_makes() -> None:
    found: dict[str, Tree] = {}
    for table in Stack().of_kind("AWS::DynamoDB::Table"):
        assert table.pop("PointInTimeRecoverySpecification") == {"PointInTimeRecoveryEnabled": True}
        table.pop("DeletionProtectionEnabled", None)
        found[table["TableName"]] = _in_order(table)
    assert found == requests()


def test_nobody_deletes_the_leases_with_the_stack() -> None:
    leases = Stack().resources["LeaseTable"]
    assert (leases["DeletionPolicy"], leases["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert leases["Properties"]["DeletionProtectionEnabled"] is True


@pytest.mark.parametrize("mode", MODES)
def test_the_stacks_policy_is_that_of_iam_policy(mode: str) -> None:
    (found,) = Stack(mode).of_kind("AWS::IAM::ManagedPolicy")
    assert grants(found["PolicyDocument"]["Statement"]) - {METRICS} == needed(mode) - {METRICS}


def test_the_modules_tables_are_those_that_the_daemon_makes() -> None:
    found: dict[str, Tree] = {}
    for name, table in plan().items():
        if name.startswith("aws_dynamodb_table."):
            assert table["point_in_time_recovery"] == [{"enabled": True}]
            found[table["name"]] = _in_order(_as_request(table))
    assert found == requests()


def _as_request(table: Tree) -> Tree:
    request: Tree = {
        "TableName": table["name"],
        "BillingMode": table["billing_mode"],
        "KeySchema": [{"AttributeName": table["hash_key"], "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": each["name"], "AttributeType": each["type"]} for each in table["attribute"]
        ],
    }
    for index in table.get("global_secondary_index", []):
        request["GlobalSecondaryIndexes"] = [
            {
                "IndexName": index["name"],
                "KeySchema": [
                    {"AttributeName": index["hash_key"], "KeyType": "HASH"},
                    {"AttributeName": index["range_key"], "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": index["projection_type"]},
            }
        ]
    return request


@pytest.mark.parametrize(("mode", "document"), [("FANOUT", "fan_out"), ("POLLING", "polling")])
def test_the_modules_policy_is_that_of_iam_policy(mode: str, document: str) -> None:
    blocks = plan()
    statements = [
        statement
        for name in ("tables", document)
        for statement in blocks[f"aws_iam_policy_document.{name}"]["statement"]
    ]
    assert grants(statements, "actions", "resources") - {METRICS} == needed(mode) - {METRICS}


def test_the_modules_policy_is_chosen_by_the_way_of_reading() -> None:
    chosen = terraform.load(MODULE)["aws_iam_policy_document.daemon"]["source_policy_documents"]
    tables, fan_out, polling = (
        f"data.aws_iam_policy_document.{name}.json" for name in ("tables", "fan_out", "polling")
    )
    by_mode = f'var.retrieval_mode == "FANOUT" ? {fan_out} : {polling}'
    assert chosen == [f"${{{tables}}}", f"${{{by_mode}}}"]


def test_schemas_may_be_read_where_they_are_resolved() -> None:
    document = build_policy(read("schemaRegistry = decode\n").settings, ("glue",), account=ACCOUNT)
    assert grants(document["Statement"]) == {SCHEMAS}
    (found,) = Stack(schemas="DECODE").of_kind("AWS::IAM::ManagedPolicy")
    needed_now = needed("FANOUT") | {SCHEMAS}
    assert grants(found["PolicyDocument"]["Statement"]) - {METRICS} == needed_now - {METRICS}
    (block,) = terraform.load(MODULE)["aws_iam_policy_document.daemon"]["dynamic"]
    assert block["statement"]["for_each"] == '${var.schema_registry == "DECODE" ? ["ReadSchemas"] : []}'
    assert grants(block["statement"]["content"], "actions", "resources") == {SCHEMAS}


def test_metrics_go_to_the_applications_namespace_alone() -> None:
    (found,) = Stack().of_kind("AWS::IAM::ManagedPolicy")
    (metrics,) = [each for each in found["PolicyDocument"]["Statement"] if each["Sid"] == "Metrics"]
    name = settings().application_name
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": name}}
    (metrics,) = [
        each for each in plan()["aws_iam_policy_document.tables"]["statement"] if each["sid"] == "Metrics"
    ]
    assert metrics["condition"] == [
        {"test": "StringEquals", "variable": "cloudwatch:namespace", "values": [name]}
    ]


def test_terraform_formats_the_module_as_it_is() -> None:
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("NOT RUN: terraform is not here; the module was parsed all the same")
    done = subprocess.run(
        [program, f"-chdir={MODULE}", "fmt", "-check", "-diff"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "CHECKPOINT_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("", 0)
