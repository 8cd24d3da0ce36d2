"""How shards are read, by the mode that is written down or by what Java makes of the other properties."""

from __future__ import annotations

import pytest

from kcl_daemon.config.retrieval import FanOutSettings, RetrievalMode
from kcl_daemon.errors import ConfigurationError
from tests.unit.config.helpers import read

FANOUT, POLLING = RetrievalMode.FANOUT, RetrievalMode.POLLING
ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks/consumer/app:1700000000"


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("", FANOUT),
        ("retrievalMode = DEFAULT\n", FANOUT),
        ("retrievalMode = fanout\n", FANOUT),
        ("retrievalMode = POLLING\n", POLLING),
        ("maxRecords = 500\n", POLLING),
        ("pollingConfig.maxRecords = 500\n", POLLING),
        ("idleTimeBetweenReadsInMillis = 1000\n", POLLING),
        ("idleTimeBetweenReadsInMillis = 0\n", FANOUT),
        ("idleTimeBetweenReadsInMillis = auto\n", POLLING),
        ("millisBehindLatestThresholdForReducedTps = 5\nretrievalMode = default\n", POLLING),
        ("retryGetRecordsInSeconds = 3\n", POLLING),
        ("pollingConfig.maxGetRecordsThreadPool = 3\n", POLLING),
        ("maxGetRecordsThreadPool = 0\n", POLLING),
        ("maxGetRecordsThreadPool =\n", POLLING),
        ("retryGetRecordsInSeconds = 0\n", POLLING),
        ("pollingConfig.retryGetRecordsInSeconds = none\n", POLLING),
        ("retryGetRecordsInSeconds = 0\nretrievalMode = FANOUT\n", FANOUT),
        ("millisBehindLatestThresholdForReducedTps = 0\n", FANOUT),
        ("maxRecords = 500\nretrievalMode = FANOUT\n", FANOUT),
        ("fanoutConfig.consumerName = app\nmaxRecords = 500\n", POLLING),
    ],
)
def test_the_mode_is_the_one_that_java_takes(lines: str, mode: RetrievalMode) -> None:
    assert read(lines).settings.retrieval.mode is mode


def test_the_consumer_is_described() -> None:
    settings = read(
        f"fanoutConfig.consumerArn = {ARN}\nfanoutConfig.consumerName = app-2\n"
        "fanoutConfig.maxDescribeStreamSummaryRetries = 1\nfanoutConfig.maxDescribeStreamConsumerRetries = 2\n"
        "fanoutConfig.registerStreamConsumerRetries = 3\nfanoutConfig.retryBackoffMillis = 0\n"
        "fanoutFallbackToPolling = true\n"
    ).settings
    assert settings.fan_out == FanOutSettings(ARN, "app-2", 1, 2, 3, 0, fallback_to_polling=True)
    assert read("fanoutConfig.consumerName =\n").settings.fan_out == FanOutSettings()


@pytest.mark.parametrize("value", ["", "1.1", "2", "3", "new"])
def test_the_http_version_is_accepted_whatever_it_is_and_changes_nothing(value: str) -> None:
    assert read(f"fanoutHttpVersion = {value}\n").settings == read("").settings


@pytest.mark.parametrize(
    "line",
    [
        "retrievalMode = push",
        "retrievalMode =",
        "fanoutConfig.consumerArn = arn:aws:kinesis:eu-west-1:111122223333:stream/clicks",
        "fanoutConfig.consumerName = two words",
        "fanoutConfig.registerStreamConsumerRetries = 0",
    ],
)
def test_a_wrong_value_of_retrieval_is_refused_with_its_key(line: str) -> None:
    with pytest.raises(ConfigurationError, match=line.partition(" ")[0]):
        read(f"{line}\n")
