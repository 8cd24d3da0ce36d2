"""What the application may be called: anything, but for what is named after it."""

from __future__ import annotations

import pytest

from tests.unit.config.helpers import GOOD, read, refusals

ODD = GOOD.replace("billing", "Pay & Bill")
TABLES = "tableName = leases\nworkerMetricsTableName = workers\ncoordinatorStateTableName = states\n"
POLLING = "retrievalMode = POLLING\n"
SILENT = "metricsLevel = NONE\n"
ALL_NAMED = f"{TABLES}fanoutConfig.consumerName = reader\nmetricsNamespace = pay/bill\n"


def called(name: str) -> str:
    return GOOD.replace("billing", name)


@pytest.mark.parametrize(
    "more",
    [
        ALL_NAMED,
        TABLES + POLLING + SILENT,
        f"{TABLES}{SILENT}fanoutConfig.consumerArn = arn:aws:kinesis:eu-west-1:111122223333:stream/s/consumer/c:1\n",
    ],
)
def test_where_nothing_is_named_after_it_it_may_be_called_anything(more: str) -> None:
    assert read(more, base=ODD).settings.application_name == "Pay & Bill"
    assert read(more, base=called("a" * 400)).settings.application_name == "a" * 400


def test_the_refusal_says_what_it_names_and_both_ways_out() -> None:
    (line,) = refusals(POLLING + SILENT, base=ODD)
    assert line == (
        "app.properties:3: applicationName = Pay & Bill: not a valid name; allowed: 3 to 237 letters, digits, dots, dashes "
        "and underscores, because the lease table, the worker metrics table and the coordinator table are named after it; "
        "to keep the name, set tableName, workerMetricsTableName and coordinatorStateTableName"
    )


@pytest.mark.parametrize(
    ("left_out", "what"),
    [
        ("tableName", "the lease table"),
        ("workerMetricsTableName", "the worker metrics table"),
        ("coordinatorStateTableName", "the coordinator table"),
        ("fanoutConfig.consumerName", "the fan-out consumer"),
        ("metricsNamespace", "the CloudWatch namespace"),
        ("sparkStateDir", "the Spark state folder"),
    ],
)
def test_each_thing_that_is_named_after_it_is_looked_at(left_out: str, what: str) -> None:
    spark = ODD.replace("executableName = consumer.py", "sparkPipeline = a:b")
    lines = f"{ALL_NAMED}sparkStateDir = /m\n".splitlines(keepends=True)
    more = "".join(line for line in lines if not line.startswith(left_out))
    (line,) = refusals(more, base=spark)
    assert line.startswith("app.properties:3: applicationName = Pay & Bill: not a valid name")
    assert f"because {what} is named after it; to keep the name, set {left_out}" in line
    assert len(refusals(f"{more}{left_out} =\n", base=spark)) >= 1  # an empty name is none


@pytest.mark.parametrize(
    ("most", "more"),
    [
        (255, ALL_NAMED.replace("tableName = leases\n", "", 1)),
        (237, ALL_NAMED.replace("workerMetricsTableName = workers\n", "")),
        (238, ALL_NAMED.replace("coordinatorStateTableName = states\n", "")),
        (128, ALL_NAMED.replace("fanoutConfig.consumerName = reader\n", "")),
        (255, ALL_NAMED.replace("metricsNamespace = pay/bill\n", "")),
        (237, POLLING),
    ],
)
def test_it_may_be_as_long_as_what_is_named_after_it(most: int, more: str) -> None:
    read(more, base=called("a" * most))
    (line,) = refusals(more, base=called("a" * (most + 1)))
    assert f" to {most} letters" in line


def test_a_namespace_may_have_more_marks_than_a_table() -> None:
    named = ALL_NAMED.replace("metricsNamespace = pay/bill\n", "")
    assert read(named, base=called("team/a#b:c")).settings.metrics.namespace is None
    (line,) = refusals(named, base=called("AWS/Kinesis"))
    assert "not beginning with AWS/, because the CloudWatch namespace is named after it" in line


@pytest.mark.parametrize("name", ["", "  ", "\\t", "a\\nb", "a\\u0000b", "\\ud83d", "a\\u2028b"])
def test_a_blank_or_unprintable_application_name_is_refused(name: str) -> None:
    (line,) = refusals(ALL_NAMED, base=called(name))
    assert line.startswith("app.properties:3: applicationName = ")
    assert "allowed: printable characters" in line


def test_a_bad_name_of_a_table_is_the_only_complaint() -> None:
    (line,) = refusals(ALL_NAMED.replace("leases", "a b"), base=ODD)
    assert line.startswith("app.properties:4: tableName = a b: ")
