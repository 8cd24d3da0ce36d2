"""The policy that `kcl-daemon iam-policy` prints: no call is forgotten, no right is too wide."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import kcl_daemon
from kcl_daemon.cli import main
from kcl_daemon.cli.iam_policy import (
    build_policy,
    capacity_policy,
    keeper_policy,
    letters_policy,
    replay_policy,
    watch_policy,
)
from tests.unit.config.helpers import GOOD, read

SOURCE = Path(kcl_daemon.__file__).parent
REGION = "regionName = eu-west-1\n"
EVERYTHING = (
    "fanoutFallbackToPolling = true\nleaseTablePitrEnabled = true\nleaseTableTags = a=b\n"
    "migrateAllEntitiesToLeaseTable = true\nschemaRegistry = decode\n"
    "poisonRecordPolicy = deadletter\ndeadLetterDestination = kinesis:dead\n"
    "deadLetterOverflow = s3://letters/large\n"
)
DEAD = "poisonRecordPolicy = deadletter\ndeadLetterDestination = "
TOPIC = f"{DEAD}sns:arn:aws:sns:eu-central-1:444455556666:dead\n"
QUEUE = f"{DEAD}sqs:https://sqs.eu-central-1.amazonaws.com/444455556666/dead.fifo\n"
FILTER = GOOD.replace("streamName = orders", "streamFilter = log-*\nstreamNames = orders")
TABLE = GOOD.replace("streamName = orders", "tableName.source = orders")
CHANGES = "arn:aws-cn:dynamodb:cn-north-1:444455556666:table/users/stream/2026-11-20T20:51:10.252"
# One call that is authorized by the calls it is made of.
TRANSACTION = "TransactWriteItems"


def statements(more: str = "", account: str | None = None) -> dict[str, dict[str, Any]]:
    document = build_policy(
        read(REGION + more).settings, ("kinesis", "dynamodb", "glue", "cloudwatch"), account=account
    )
    assert document["Version"] == "2012-10-17"
    return {statement["Sid"]: statement for statement in document["Statement"]}


def actions(more: str = "") -> set[str]:
    return {action.partition(":")[2] for each in statements(more).values() for action in each["Action"]}


def test_figures_may_be_reported_in_the_application_s_namespace_only() -> None:
    for more, namespace in (
        ("", read().settings.application_name),
        ("metricsNamespace = team/orders\n", "team/orders"),
    ):
        statement = statements(more)["Metrics"]
        assert (statement["Action"], statement["Resource"]) == (["cloudwatch:PutMetricData"], ["*"])
        assert statement["Condition"] == {"StringEquals": {"cloudwatch:namespace": namespace}}
    assert "Metrics" not in statements("metricsLevel = NONE\n")


def calls_in_the_source() -> set[str]:
    """Every operation that the adapters of AWS name."""
    found: set[str] = set()
    for path in (
        path for room in ("aws", "destinations", "transport") for path in (SOURCE / room).glob("*.py")
    ):
        text = path.read_text("utf-8")
        found |= set(
            re.findall(
                r"(?:\.(?:run|call|_call|_pages|open|subscribe)\(\s*|\n    operation = )\"([A-Z][A-Za-z]+)\"",
                text,
            )
        )
        found |= set(re.findall(r"_(?:DESCRIBE|REGISTER): Final = \"([A-Za-z]+)\"", text))
        found |= {
            "".join(word.title() for word in name.split("_"))
            for name in re.findall(
                r"(?:_client|clients?\.(?:kinesis|dynamodb|glue))\.([a-z]+_[a-z_]+)\b", text
            )
        }
    return found - {"Credentials", "CaBundle", "OpenStream", TRANSACTION}


def test_every_call_that_is_made_is_allowed() -> None:
    assert {"GetRecords", "UpdateItem", "CreateTable"} <= calls_in_the_source()
    by_filter = build_policy(read(base=FILTER).settings, ("kinesis",))
    assert by_filter["Statement"][0]["Action"] == ["kinesis:ListStreams"]  # goes to no stream
    of_replay = {action for each in replayed() for action in each["Action"]}
    assert "dynamodb:DeleteTable" in of_replay
    for_letters = {"GetObject", "ReceiveMessage", "DeleteObjects"}
    of_changes = build_policy(read("snapshot = true\n", base=TABLE).settings, ("kinesis", "dynamodb"))
    for_changes = {action.partition(":")[2] for each in of_changes["Statement"] for action in each["Action"]}
    assert calls_in_the_source() <= actions(EVERYTHING) | actions(QUEUE) | actions(TOPIC) | for_letters | {
        *for_changes,
        "DeleteTable",
        "PutRecords",  # of `kcl-daemon put`: docs/tail.md says what a person needs for it
    }


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (f"{DEAD}file:dead.jsonl\n", []),
        (TOPIC, []),
        (
            f"{DEAD}s3://letters/dead\n",
            [
                (["s3:GetObject", "s3:DeleteObject"], ["arn:aws:s3:::letters/dead/*"]),
                (["s3:ListBucket"], ["arn:aws:s3:::letters"]),
            ],
        ),
        (
            QUEUE,
            [
                (
                    ["sqs:ReceiveMessage", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage"],
                    ["arn:aws:sqs:eu-central-1:444455556666:dead.fifo"],
                )
            ],
        ),
        (
            f"{DEAD}kinesis:dead\n",
            [
                (
                    ["kinesis:ListShards", "kinesis:GetShardIterator", "kinesis:GetRecords"],
                    ["arn:aws:kinesis:eu-west-1:111122223333:stream/dead"],
                )
            ],
        ),
    ],
    ids=["file", "topic", "bucket", "queue", "stream"],
)
def test_the_policy_for_letters_depends_on_their_destination(
    more: str, found: list[tuple[list[str], list[str]]]
) -> None:
    document = letters_policy(read(REGION + more).settings, account="111122223333")
    assert [(each["Action"], each["Resource"]) for each in document["Statement"]] == found


def replayed() -> list[dict[str, Any]]:
    document = replay_policy(read(REGION + EVERYTHING).settings, account="111122223333")
    return list(document["Statement"])


def test_a_replay_may_touch_tables_of_its_own_only() -> None:
    name = read().settings.application_name
    tables = [resource for each in replayed() for resource in each["Resource"] if ":dynamodb:" in resource]
    assert tables
    assert all(f":table/{name}-replay-*" in table for table in tables)


def test_the_policy_allows_only_calls_that_the_source_makes() -> None:
    extra = actions(EVERYTHING) - calls_in_the_source()
    assert extra <= {"SubscribeToShard", "TagResource", "ConditionCheckItem"}


def test_no_statement_of_the_policy_is_for_all_resources_or_actions() -> None:
    found = statements(EVERYTHING, "111122223333")
    assert found.pop("ReadSchemas")["Resource"] == ["*"]  # a version's id tells nothing of its schema
    assert found.pop("Metrics")["Condition"]  # that call knows no resources
    for statement in found.values():
        for resource in statement["Resource"]:
            assert resource.startswith(
                (
                    "arn:aws:kinesis:eu-west-1:111122223333:",
                    "arn:aws:dynamodb:eu-west-1:1",
                    "arn:aws:s3:::letters/large/",
                )
            )
        assert not any("*" in action for action in statement["Action"])


def test_a_registry_is_read_only_where_it_is_asked() -> None:
    assert statements("schemaRegistry = decode\n")["ReadSchemas"]["Action"] == ["glue:GetSchemaVersion"]
    assert "ReadSchemas" not in statements("schemaRegistry = off\n")


@pytest.mark.parametrize(
    ("more", "action", "resource"),
    [
        (QUEUE, "sqs:SendMessage", "arn:aws:sqs:eu-central-1:444455556666:dead.fifo"),
        (f"{DEAD}kinesis:dead\n", "kinesis:PutRecord", "arn:aws:kinesis:eu-west-1:111122223333:stream/dead"),
        (
            f"{DEAD}kinesis:arn:aws:kinesis:us-east-1:444455556666:stream/dead\n",
            "kinesis:PutRecord",
            "arn:aws:kinesis:us-east-1:444455556666:stream/dead",
        ),
        (TOPIC, "sns:Publish", "arn:aws:sns:eu-central-1:444455556666:dead"),
        (f"{DEAD}s3://letters/a/b?folders=day\n", "s3:PutObject", "arn:aws:s3:::letters/a/b/*"),
        (f"{DEAD}s3://letters\n", "s3:PutObject", "arn:aws:s3:::letters/*"),
    ],
    ids=["queue", "stream", "stream of another account", "topic", "prefix of a bucket", "bucket"],
)
def test_dead_letters_may_be_sent_where_they_go(more: str, action: str, resource: str) -> None:
    found = statements(more, "111122223333")["DeadLetters"]
    assert (found["Action"], found["Resource"]) == ([action], [resource])


def test_letters_that_are_too_large_may_go_where_they_go() -> None:
    found = statements(f"{QUEUE}deadLetterOverflow = s3://letters/large\n")
    assert found["DeadLetters"]["Action"] == ["sqs:SendMessage"]
    overflow = found["DeadLetterOverflow"]
    assert (overflow["Action"], overflow["Resource"]) == (
        ["s3:PutObject"],
        ["arn:aws:s3:::letters/large/*"],
    )
    china = statements(f"{DEAD}s3://letters\nkinesisClient.region = cn-north-1\n")["DeadLetters"]
    assert china["Resource"] == ["arn:aws-cn:s3:::letters/*"]


def test_dead_letters_in_a_file_need_no_right() -> None:
    assert "DeadLetters" not in statements(f"{DEAD}file:/var/lib/dead.jsonl\n")


def test_a_landing_in_a_bucket_is_read_written_and_listed_and_a_folder_needs_no_right() -> None:
    landing = GOOD.replace("executableName = consumer.py", "landing = s3://records/orders")
    document = build_policy(read(base=landing).settings, ("kinesis",))
    found = {each["Sid"]: (each["Action"], each["Resource"]) for each in document["Statement"]}
    rights = ["s3:GetObject", "s3:PutObject"]
    assert found["Landing"] == (rights, ["arn:aws:s3:::records/orders/*"])
    assert found["LandingList"] == (["s3:ListBucket"], ["arn:aws:s3:::records"])
    folder = read(base=landing.replace("s3://records/orders", "/var/lib/landing")).settings
    assert "Landing" not in {each["Sid"] for each in build_policy(folder, ("kinesis",))["Statement"]}


KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def test_whoever_writes_a_landing_may_use_its_key_and_only_its_keeper_may_delete() -> None:
    landing = GOOD.replace(
        "executableName = consumer.py", f"landing = s3://records/orders\nlandingEncryption = {KEY}"
    )
    settings = read(base=landing).settings
    daemon, keeper = build_policy(settings, ("kinesis",)), keeper_policy(settings)
    for document, deletes in ((daemon, []), (keeper, ["s3:DeleteObject"])):
        found = {each["Sid"]: (each["Action"], each["Resource"]) for each in document["Statement"]}
        assert found["LandingKey"] == (["kms:GenerateDataKey", "kms:Decrypt"], [KEY])
        rights = ["s3:GetObject", "s3:PutObject", *deletes]
        assert found["Landing"] == (rights, ["arn:aws:s3:::records/orders/*"])
    assert [each["Sid"] for each in keeper["Statement"]] == ["Landing", "LandingList", "LandingKey"]


def test_the_command_knows_the_keeper_and_names_keys_that_it_cannot_know(tmp_path: Path) -> None:
    landing = GOOD.replace("executableName = consumer.py", "landing = s3://records/orders")
    result = invoke(tmp_path, landing, "--landing")
    rights = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    assert [each["Action"] for each in json.loads(result.stdout)["Statement"]] == [rights, ["s3:ListBucket"]]
    for text, words in ((landing, ("--landing",)), (landing, ()), (GOOD, ())):
        assert "KMS key of your own" in invoke(tmp_path, text, *words).stderr
    assert "KMS" not in invoke(tmp_path, GOOD, "--service", "dynamodb").stderr


def test_a_polling_daemon_needs_no_consumer() -> None:
    polling = actions("retrievalMode = POLLING\n")
    assert "GetRecords" in polling
    assert not polling & {"SubscribeToShard", "RegisterStreamConsumer", "DescribeStreamConsumer"}


def test_with_fan_out_a_landing_and_spark_also_read() -> None:
    assert "GetRecords" not in actions("retrievalMode = FANOUT\n")
    for own in ("landing = /var/lib/landing", "sparkPipeline = jobs:words"):
        base = GOOD.replace("executableName = consumer.py", own)
        document = build_policy(read("retrievalMode = FANOUT\n", base=base).settings, ("kinesis",))
        assert "kinesis:GetRecords" in document["Statement"][0]["Action"]


def test_a_daemon_with_a_consumer_of_its_own_registers_none() -> None:
    consumer = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders/consumer/c:1"
    found = statements(f"retrievalMode = FANOUT\nfanoutConfig.consumerArn = {consumer}\n")
    assert found["Subscribe"]["Resource"] == [consumer]
    assert "kinesis:RegisterStreamConsumer" not in found["ReadStream"]["Action"]


def test_an_arn_tells_the_partition_and_not_the_account_of_the_tables() -> None:
    arn = "arn:aws-cn:kinesis:cn-north-1:111122223333:stream/clicks"
    document = build_policy(read(f"streamArn = {arn}\n").settings, ("kinesis", "dynamodb"))
    resources = [each for statement in document["Statement"] for each in statement["Resource"]]
    assert resources[0] == arn
    assert "arn:aws-cn:dynamodb:cn-north-1:*:table/billing" in resources


def invoke(directory: Path, text: str, *words: str) -> Result:
    path = directory / "app.properties"
    path.write_text(text, "ascii")
    return CliRunner().invoke(main, ["iam-policy", str(path), *words])


def test_the_command_prints_json_and_notes_apart(tmp_path: Path) -> None:
    role = "arn:aws:iam::111122223333:role/reader"
    text = GOOD + f"AwsCredentialsProvider = StsAssumeRoleCredentialsProvider|{role}|kcl\n"
    result = invoke(tmp_path, text, "--service", "dynamodb")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert all(action.startswith("dynamodb:") for each in document["Statement"] for action in each["Action"])
    assert f"sts:AssumeRole for {role}" in result.stderr
    assert "sets no region" in result.stderr


def test_the_account_that_is_given_is_that_of_tables_and_of_streams_by_name_alone() -> None:
    theirs = "arn:aws:kinesis:eu-west-1:999988887777:stream/theirs"
    many = GOOD.replace("streamName = orders", f"streamArns = {theirs}\nstreamNames = ours")
    for given, reported in ((None, "*"), ("111122223333", "111122223333")):
        document = build_policy(read(REGION, base=many).settings, ("kinesis", "dynamodb"), account=given)
        resources = {each["Sid"]: each["Resource"] for each in document["Statement"]}
        assert resources["ReadStream"] == [theirs, f"arn:aws:kinesis:eu-west-1:{reported}:stream/ours"]
        assert resources["OwnerIndex"] == [f"arn:aws:dynamodb:eu-west-1:{reported}:table/billing"]


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        ([], True),
        (["--account", "111122223333"], False),
        (["--service", "dynamodb"], True),
        (["--service", "kinesis"], False),
        (["--service", "cloudwatch"], False),
    ],
)
def test_where_the_account_is_left_open_it_is_reported(
    tmp_path: Path, words: list[str], is_told: bool
) -> None:
    text = GOOD.replace(
        "streamName = orders", "streamArn = arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
    )
    result = invoke(tmp_path, text, *words)
    assert result.exit_code == 0
    assert ("use --account to narrow it" in result.stderr) == is_told


@pytest.mark.parametrize("account", ["1", "abcdefghijkl"])
def test_an_account_has_twelve_digits(tmp_path: Path, account: str) -> None:
    assert invoke(tmp_path, GOOD, "--account", account).exit_code == 2


def test_many_streams_are_all_there() -> None:
    document = build_policy(read(REGION, base=FILTER).settings, ("kinesis",), account="111122223333")
    resources = next(each["Resource"] for each in document["Statement"] if each["Sid"] == "ReadStream")
    prefix = "arn:aws:kinesis:eu-west-1:111122223333:stream/"
    assert resources == [f"{prefix}orders", f"{prefix}log-*"]


@pytest.mark.parametrize(("more", "names"), [("", ["Tables"]), ("scaleToZero = true\n", ["Tables", "Peek"])])
def test_capacity_only_reads_and_looks_into_the_stream_only_where_no_worker_may_run(
    more: str, names: list[str]
) -> None:
    found = capacity_policy(read(REGION + more).settings, account="111122223333")["Statement"]
    assert [each["Sid"] for each in found] == names
    assert {action.partition(":")[2] for each in found for action in each["Action"]} <= {
        "DescribeTable", "GetItem", "Scan", "GetShardIterator", "GetRecords",
    }  # fmt: skip


def test_watch_lists_and_polls_the_streams_whose_shards_are_pushed_to_the_daemon() -> None:
    settings = read(REGION + "retrievalMode = FANOUT\n", base=FILTER).settings
    found = watch_policy(settings, account="111122223333")["Statement"]
    assert [each["Sid"] for each in found] == ["Tables", "ListStreams", "ReadStream", "Metrics"]
    assert found[2]["Action"] == [
        f"kinesis:{each}"
        for each in ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords")
    ]


def of_changes(lines: str) -> list[tuple[str, list[str], list[str]]]:
    base = GOOD.replace("streamName = orders\n", "") + lines
    document = build_policy(read(base=base).settings, ("kinesis",), account="111122223333")
    return [(each["Sid"], each["Action"], each["Resource"]) for each in document["Statement"]]


READ_CHANGES = ["dynamodb:DescribeStream", "dynamodb:GetShardIterator", "dynamodb:GetRecords"]


def test_a_stream_of_a_table_is_read_by_its_arn_and_nothing_of_kinesis() -> None:
    assert of_changes(f"streamArn = {CHANGES}\n") == [("ReadChanges", READ_CHANGES, [CHANGES])]


def test_the_streams_of_a_table_are_found_and_read_beside_others() -> None:
    of_table = "arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/*"
    found = of_changes("streamNames = clicks\ntableName.source = orders\nregionName = eu-west-1\n")
    assert [sid for sid, _, _ in found][:1] == ["ReadStream"]
    assert found[-2:] == [
        ("ReadChanges", READ_CHANGES, [of_table]),
        ("FindStreams", ["dynamodb:ListStreams"], [of_table]),
    ]


def test_a_snapshot_reads_the_table_with_the_role_for_tables() -> None:
    lines = f"streamArn = {CHANGES}\nsnapshot = true\n"
    base = GOOD.replace("streamName = orders\n", "") + lines
    document = build_policy(read(base=base).settings, ("dynamodb",), account="111122223333")
    (snapshot,) = (each for each in document["Statement"] if each["Sid"] == "Snapshot")
    assert snapshot["Action"] == ["dynamodb:DescribeTable", "dynamodb:Scan"]
    assert snapshot["Resource"] == ["arn:aws-cn:dynamodb:cn-north-1:444455556666:table/users"]
    assert all(each["Resource"] != [CHANGES] for each in document["Statement"])
