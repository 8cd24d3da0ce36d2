"""The properties files that the client libraries come with, in our words: the same keys, active or commented out.

`{...}` is what a test fills in.
"""

from __future__ import annotations

from typing import Final

_SHOWN_TO_ALL: Final = """
#failoverTimeMillis = 10000
#workerId = worker-1
#shardSyncIntervalMillis = 60000
#maxRecords = 10000
#idleTimeBetweenReadsInMillis = 1000
#callProcessRecordsEvenForEmptyRecordList = false
#parentShardPollIntervalMillis = 10000
#cleanupLeasesUponShardCompletion = true
#taskBackoffTimeMillis = 500
#metricsBufferTimeMillis = 10000
#metricsMaxQueueSize = 10000
#validateSequenceNumberBeforeCheckpointing = true
#maxActiveThreads = 0
"""
_SHOWN_OF_KCL_3: Final = """
#initialPositionInStreamExtended = 1636609142
#clientVersionConfig = CLIENT_VERSION_CONFIG_3x
#coordinatorStateTableName = {application}-states
#coordinatorStateBillingMode = PAY_PER_REQUEST
#coordinatorStateReadCapacity = 1000
#coordinatorStateWriteCapacity = 500
#coordinatorStatePointInTimeRecoveryEnabled = true
#coordinatorStateDeletionProtectionEnabled = true
#coordinatorStateTags = team=data, cost=7
#gracefulLeaseHandoffTimeoutMillis = 10000
#isGracefulLeaseHandoffEnabled = false
#workerMetricsTableName = {application}-workers
#workerMetricsBillingMode = PROVISIONED
#workerMetricsReadCapacity = 250
#workerMetricsWriteCapacity = 90
#workerMetricsPointInTimeRecoveryEnabled = true
#workerMetricsDeletionProtectionEnabled = true
#workerMetricsTags = team=data
#disableWorkerMetrics = true
#inMemoryWorkerMetricsCaptureFrequencyMillis = 5000
#workerMetricsReporterFreqInMillis = 60000
#noOfPersistedMetricsPerWorkerMetrics = 50
#maxThroughputPerHostKBps = 10000
#dampeningPercentage = 80
#reBalanceThresholdPercentage = 25
#allowThroughputOvershoot = false
#varianceBalancingFrequency = 5
#workerMetricsEMAAlpha = 0.18
#staleWorkerMetricsEntryCleanupDuration = P1D
#leaseAssignmentIntervalMillis = 60000
"""
_ARN: Final = "streamArn = arn:aws:kinesis:us-east-1:{account}:stream/{stream}\n"


def _file(
    language: str,
    *,
    arn: bool,
    more: str,
    provider: str = "AwsCredentialsProvider = DefaultCredentialsProvider",
) -> str:
    return (
        "# The program that is run for each shard.\nexecutableName = {program}\n"
        f"{_ARN if arn else ''}streamName = {{stream}}\napplicationName = {{application}}\n{provider}\n"
        f"processingLanguage = {language}\ninitialPositionInStream = TRIM_HORIZON\nregionName = us-east-1\n{more}"
    )


SAMPLES: Final = {
    "python": _file("python/3.8", arn=True, more=_SHOWN_TO_ALL + _SHOWN_OF_KCL_3),
    "node": _file(
        "nodejs/0.10",
        arn=False,
        more=_SHOWN_TO_ALL + _SHOWN_OF_KCL_3 + "#metricsEnabledDimensions = Operation\n",
    ),
    "node click stream": _file(
        "nodejs/0.10",
        arn=False,
        more=_SHOWN_TO_ALL,
        provider="AWSCredentialsProvider = DefaultAWSCredentialsProviderChain",
    ),
    "ruby": _file("ruby", arn=True, more=_SHOWN_TO_ALL + _SHOWN_OF_KCL_3),
    "dotnet": _file("C#", arn=True, more=_SHOWN_TO_ALL + _SHOWN_OF_KCL_3),
    "ci": _file("python/3.8", arn=False, more="idleTimeBetweenReadsInMillis = 250\n"),
}


def uncommented(text: str) -> str:
    """The file with everything switched on that it shows, but for comments in words."""
    return "".join(
        line.removeprefix("#") if line.startswith("#") and " = " in line else line
        for line in text.splitlines(keepends=True)
    )
