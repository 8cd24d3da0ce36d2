"""The tables of properties agree with the settings, with each other and with the committed reference."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from kcl_daemon.config import checks, load
from kcl_daemon.config.kinds import Key
from kcl_daemon.config.load import default_of, field_of
from kcl_daemon.config.settings import BY_NAME, INERT, KEYS, TOPICS, nearest
from tests.unit.config.helpers import GOOD, read
from tools.properties_reference import MATTER, anchor_of, reference

MANY = GOOD.replace("streamName =", "streamNames =")
CHANGES = re.sub(
    "streamName = .*",
    "streamArns = arn:aws:dynamodb:eu-west-1:111122223333:table/users/stream/2026-11-20T20:51:10.252",
    GOOD,
)
LANDING = re.sub("executableName = .*", "landing = /var/lib/landing", GOOD)
ROOT = Path(__file__).parents[3]

# A value for each key that differs from its default.
SAMPLES = {
    "childStderrLevel": "ERROR",
    "childLogMessages": "true",
    "childPreload": "true",
    "executableName": "a b",
    "runUntil": "tip\ninitialPositionInStream = TRIM_HORIZON",
    "applicationName": "other",
    "streamName": "other",
    "streamArn": "arn:aws-cn:kinesis:cn-north-1:111122223333:stream/clicks",
    "streamArns": "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks@12",
    "streamNames": "clicks, orders@TRIM_HORIZON",
    "streamFilter": "click*",
    "formerStreamsLeasesDeletionStrategy": "FORMER_STREAMS_AUTO_DETECTION_DEFERRED_DELETION",
    "waitPeriodToDeleteFormerStreams": "P1D",
    "streamIdentifiersForLeaseCleanup": "111122223333:clicks:1700000000\n"
    "formerStreamsLeasesDeletionStrategy = PROVIDED_STREAMS_DEFERRED_DELETION",
    "workerId": "w",
    "adminAddress": "127.0.0.2",
    "adminToken": "0123456789abcdef",
    "tableName": "table",
    "regionName": "eu-west-1",
    "kinesisEndpoint": "http://127.0.0.1:1",
    "dynamoDBEndpoint": "http://127.0.0.1:2",
    "initialPositionInStream": "TRIM_HORIZON",
    "initialPositionInStreamExtended": "12",
    "recordFilter": '{"data": {"order": {"type": ["new"]}}}',
    "retrievalMode": "POLLING",
    "childFailurePolicy": "exit",
    "poisonRecordPolicy": "skip",
    "deadLetterOverflow": "s3://letters/large\npoisonRecordPolicy = deadletter\n"
    "deadLetterDestination = kinesis:dead",
    "deadLetterDestination": "file:dead.jsonl\npoisonRecordPolicy = deadletter",
    "maxRecordAgeMillis": "600\ndeadLetterDestination = file:dead.jsonl",
    "maxRecordAttempts": "600\npoisonRecordPolicy = skip",
    "fanoutConfig.consumerArn": "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks/consumer/app:1700000000",
    "fanoutFallbackToPolling": "yes",
    "callProcessRecordsEvenForEmptyRecordList": "on",
    "leaderHeartbeatMillis": "2000",
    "leaderLeaseMillis": "20000",
    "metadataTableLayout": "single",
    "leaseTablePitrEnabled": "true",
    "migrateAllEntitiesToLeaseTable": "true",
    "tableMigrationCompleteBakeTimeSeconds": "7200",
    "leaseTableDeletionProtectionEnabled": "true",
    "leaseTableBillingMode": "PROVISIONED",
    "leaseTableTags": "team=data",
    **{
        f"{table}{ending}": value
        for table in ("workerMetrics", "coordinatorState")
        for ending, value in {
            "BillingMode": f"PROVISIONED\n{table}ReadCapacity = 5\n{table}WriteCapacity = 6",
            "PointInTimeRecoveryEnabled": "true",
            "DeletionProtectionEnabled": "true",
            "Tags": "team=data, cost = 7",
        }.items()
    },
    "clientVersionConfig": "client_version_config_compatible_with_2x",
    "enablePriorityLeaseAssignment": "no",
    "isGracefulLeaseHandoffEnabled": "no",
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
    "reBalanceThresholdPercentage": "20",
    "dampeningPercentage": "80",
    "allowThroughputOvershoot": "off",
    "workerMetricsEMAAlpha": "0.25",
    "disableWorkerMetrics": "true",
    "staleWorkerMetricsEntryCleanupDuration": "PT15M",
    "shardSyncStrategyType": "PERIODIC",
    "ignoreUnexpectedChildShards": "true",
    "cleanupLeasesUponShardCompletion": "false",
    "shardPrioritization": "PARENTS_FIRST:2",
    "landing": "s3://records/orders",
    "landingMaxBytes": "2000000",
    "landingLayout": "dated",
    "landingFormat": "arrow",
    "landingProcesses": "3",
    "landingMemoryBytes": "100000000",
    "landingEndpoint": "http://127.0.0.1:3",
    "landingEncryption": "aws:kms\nlanding = s3://records/orders",
    "sparkPipeline": "orders:pipeline",
    "sparkMaster": "local[3]",
    "sparkDriverMemory": "2g",
    "sparkSpoolMaxBytes": "2000000",
    "sparkTrigger": "availableNow",
    "sparkStateReset": "true",
    "sparkColumns": "aws",
    "cloudWatchClient.endpointOverride": "https://monitoring.example",
    "s3Endpoint": "http://127.0.0.1:3",
    "snsEndpoint": "http://127.0.0.1:3",
    "glueClient.endpointOverride": "https://glue.example",
    **{
        f"{client}.{name}": "true"
        for client in ("kinesisClient", "dynamoDbClient", "cloudWatchClient", "glueClient")
        for name in ("fipsEnabled", "dualstackEnabled")
    },
    "dynamoDbClient.endpointDiscoveryEnabled": "true",
    "dynamoDbClient.accountIdEndpointMode": "REQUIRED",
    "AwsCredentialsProvider": "ProfileCredentialsProvider|staging",
    "AwsCredentialsProviderDynamoDB": "EnvironmentVariableCredentialsProvider",
    "AwsCredentialsProviderCloudWatch": "ContainerCredentialsProvider",
    "AwsCredentialsProviderGlue": "StsAssumeRoleCredentialsProvider|arn:aws:iam::111122223333:role/reader|kcl",
    "noOfPersistedMetricsPerWorkerMetrics": "5",
    "childInheritCredentials": "false",
    "childMemoryLimitBytes": "100000000",
    "metricsLevel": "summary",
    "schemaRegistry": "decode",
    "schemaRegistryFailure": "passthrough",
    "metricsNamespace": "team/orders",
    "metricsOtlpEndpoint": "https://[::1]:4318/v1/metrics",
    "metricsEnabledDimensions": "Operation, ShardId",
    "expandEnvironment": "true",
    "keepRecordsOfOtherShards": "true",
    "scaleToZero": "true",
    "childProtocol": "kcl_1_8",
    "shardConcurrency": "16",
    "shardOrder": "none",
    "shardConcurrencyWindowBytes": "2000000",
    "shardConcurrencyRemembers": "true",
    "dynamoDBStreamsEndpoint": "http://127.0.0.1:4",
    "tableName.source": "orders",
    "childRecordFormat": "plain",
    "onTrimmed": "stop",
    "snapshot": "true",
}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_property_that_is_set_changes_the_field_named_in_the_reference(key: Key) -> None:
    base = {"streams": MANY, "landing": LANDING, "changes": CHANGES}.get(key.target.partition(".")[0], GOOD)
    before = field_of(read(base=base).settings, key.target)
    written = f"{key.name} = {SAMPLES.get(key.name, '600')}\n"
    after = field_of(read(written, base=base).settings, key.target)
    assert after != before
    assert before is None or type(after) is type(before)


def test_no_name_is_in_two_tables() -> None:
    spellings = [spelling for key in KEYS for spelling in (key.name, *key.aliases)]
    assert len(spellings) == len(set(spellings)) == len(BY_NAME)
    assert not set(spellings) & set(INERT)


def test_every_property_that_a_rule_names_exists() -> None:
    trees = [ast.parse(inspect.getsource(module)) for module in (checks, load)]
    texts = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    named = {
        text for text in texts if isinstance(text, str) and re.fullmatch(r"[a-z]+[A-Z.][A-Za-z.]+", text)
    }
    assert len(named) > 50
    others = {"child.command", "glueClient.", "httpClientBuilder", "spark.conf", "streams.tables"}
    assert named - set(BY_NAME) == others


def test_defaults_are_those_of_the_settings() -> None:
    assert default_of(BY_NAME["failoverTimeMillis"]) == "10000"
    assert default_of(BY_NAME["initialPositionInStream"]) == "LATEST"
    assert default_of(BY_NAME["callProcessRecordsEvenForEmptyRecordList"]) == "false"
    assert default_of(BY_NAME["leaseAssignmentStrategy"]) == "WORKER_UTILIZATION_AWARE"
    assert default_of(BY_NAME["executableName"]) == "required"


def test_a_default_can_be_written_out_without_changing_anything() -> None:
    mode = "retrievalMode = FANOUT\n"  # its default depends on whether others are written
    written = mode + "".join(
        f"{key.name} = {default_of(key)}\n" for key in KEYS if key.default is None and not key.required
    )
    assert read(written).settings == read(mode, base=GOOD).settings


def test_the_committed_reference_is_the_generated_one() -> None:
    committed = (ROOT / "docs" / "properties.md").read_text(encoding="utf-8")
    assert committed == reference(), "run: python -m tools.properties_reference > docs/properties.md"


def test_about_twenty_properties_are_shown_first_and_each_exists() -> None:
    assert [name for name in MATTER if name not in BY_NAME] == []
    assert 15 < len(MATTER) < 25


def test_no_topic_is_empty() -> None:
    of_keys = {nearest(key.target) for key in KEYS}
    assert [topic for topic, targets in TOPICS.items() if of_keys.isdisjoint(targets)] == []


def test_each_property_stands_in_one_place_that_others_can_link_to() -> None:
    text = reference()
    rows = re.findall(r"^- <a id=\"([^\"]+)\"></a>\*\*`([^`]+)`", text, re.MULTILINE)
    assert sorted(rows) == sorted((anchor_of(key), key.name) for key in KEYS)
    headings = {
        line.strip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")
    }
    anchors = [anchor for anchor, _ in rows]
    assert len(anchors) == len(set(anchors)) == len(KEYS)
    assert not headings & set(anchors)
