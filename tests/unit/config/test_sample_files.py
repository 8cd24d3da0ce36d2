"""Files with the keys of the sample files of the five client libraries start this daemon."""

from __future__ import annotations

import pytest

from kcl_daemon.config.load import Loaded, interpret
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.unit.config.helpers import WORKER

_ARN = "streamArn = arn:aws:kinesis:us-east-5:000000000000:stream/words\n"
_COMMON = (
    "streamName = words\napplicationName = WordApp\nAwsCredentialsProvider = DefaultCredentialsProvider\n"
    "initialPositionInStream = TRIM_HORIZON\nregionName = us-east-1\n"
)
SAMPLES = {
    "python": "executableName = consumer.py\n" + _ARN + _COMMON + "processingLanguage = python/3.8\n",
    "node": "executableName = node consumer.js\n" + _COMMON + "processingLanguage = nodejs/0.10\n",
    "ruby": "executableName = consumer.rb\n" + _ARN + _COMMON + "processingLanguage = ruby\n",
    "dotnet": "executableName = dotnet Consumer.dll\n" + _ARN + _COMMON + "processingLanguage = C#\n",
    "ci": "executableName = consumer.py\n" + _COMMON + "idleTimeBetweenReadsInMillis = 250\n",
}
# What their samples show commented out, with the defaults they tell.
COMMENTED = """
#initialPositionInStreamExtended = 1636609142
failoverTimeMillis = 10000
workerId = worker-7
shardSyncIntervalMillis = 60000
maxRecords = 10000
idleTimeBetweenReadsInMillis = 1000
callProcessRecordsEvenForEmptyRecordList = false
parentShardPollIntervalMillis = 10000
cleanupLeasesUponShardCompletion = true
taskBackoffTimeMillis = 500
metricsBufferTimeMillis = 10000
metricsMaxQueueSize = 10000
metricsEnabledDimensions = Operation
validateSequenceNumberBeforeCheckpointing = true
maxActiveThreads = -1
clientVersionConfig = CLIENT_VERSION_CONFIG_3X
coordinatorStateTableName = states
coordinatorStateBillingMode = PAY_PER_REQUEST
coordinatorStateReadCapacity = 1000
coordinatorStateWriteCapacity = 500
coordinatorStatePointInTimeRecoveryEnabled = true
coordinatorStateDeletionProtectionEnabled = true
coordinatorStateTags = a=b,c=d
gracefulLeaseHandoffTimeoutMillis = 30000
isGracefulLeaseHandoffEnabled = true
workerMetricsTableName = stats
workerMetricsBillingMode = PROVISIONED
workerMetricsReadCapacity = 100
workerMetricsWriteCapacity = 100
workerMetricsPointInTimeRecoveryEnabled = false
workerMetricsDeletionProtectionEnabled = false
workerMetricsTags = a=b
disableWorkerMetrics = false
inMemoryWorkerMetricsCaptureFrequencyMillis = 1000
workerMetricsReporterFreqInMillis = 30000
noOfPersistedMetricsPerWorkerMetrics = 10
maxThroughputPerHostKBps = 1000
dampeningPercentage = 60
reBalanceThresholdPercentage = 10
allowThroughputOvershoot = true
varianceBalancingFrequency = 3
workerMetricsEMAAlpha = 0.5
staleWorkerMetricsEntryCleanupDuration = PT15M
leaseAssignmentIntervalMillis = 20000
"""


def load_sample(text: str) -> Loaded:
    return interpret(text.encode("ascii"), file="sample.properties", default_worker_id=WORKER)


@pytest.mark.parametrize("library", sorted(SAMPLES))
def test_a_sample_file_starts_the_daemon(library: str) -> None:
    settings = load_sample(SAMPLES[library]).settings
    assert (settings.application_name, settings.stream_name) == ("WordApp", "words")
    assert settings.initial_position == InitialPosition(StartAt.TRIM_HORIZON)
    assert settings.endpoints.region_name == "us-east-1"
    assert settings.worker_id == WORKER


@pytest.mark.parametrize("library", sorted(SAMPLES))
def test_everything_that_a_sample_shows_is_known(library: str) -> None:
    loaded = load_sample(SAMPLES[library] + COMMENTED)
    events = {notice.event for notice in loaded.warnings}
    assert "unknown_property" not in events
    assert "property_has_no_effect" in events


def test_the_credentials_name_of_an_old_sample_is_accepted_with_a_warning() -> None:
    old = _COMMON.replace(
        "AwsCredentialsProvider = DefaultCredentialsProvider",
        "AWSCredentialsProvider = DefaultAWSCredentialsProviderChain",
    )
    notices = load_sample("executableName = x\n" + old).warnings
    assert [(notice.level, notice.event) for notice in notices] == [
        ("info", "credentials_from_sdk_chain"),
        ("warning", "credentials_provider_doubtful"),
    ]
