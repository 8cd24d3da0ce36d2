"""The properties of the tables: names, billing, protection, tags, layout."""

from __future__ import annotations

import pytest

from kcl_daemon.config.tables import BillingMode, TableOptions, TablesSettings
from kcl_daemon.leases.layout import TableLayout
from tests.unit.config.helpers import events, read, refusals

PREFIXES = {"workerMetrics": "worker_metrics", "coordinatorState": "coordinator"}
BEANS = {
    "workerMetrics": "workerMetricStatsTableConfigBean",
    "coordinatorState": "coordinatorStateTableConfigBean",
}


def test_by_default_tables_are_named_after_the_application_and_made_on_demand() -> None:
    settings = read().settings
    names = (settings.lease_table, settings.worker_metrics_table, settings.coordinator_table)
    assert names == ("billing", "billing-WorkerMetricStats", "billing-CoordinatorState")
    assert settings.tables == TablesSettings()
    assert settings.tables.layout is TableLayout.SEPARATE
    assert settings.tables.leases == TableOptions(read_capacity=10, write_capacity=10)


def test_names_of_the_other_tables_do_not_follow_that_of_the_lease_table() -> None:
    settings = read("tableName = leases\n").settings
    assert settings.lease_table == "leases"
    assert settings.coordinator_table == "billing-CoordinatorState"


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_metadata_table_is_what_its_seven_keys_say(prefix: str, dotted: bool) -> None:
    path = f"{BEANS[prefix]}.{prefix}" if dotted else prefix
    text = (
        f"{path}TableName = mine\n{path}BillingMode = provisioned\n{path}ReadCapacity = 5\n"
        f"{path}WriteCapacity = 6\n{path}PointInTimeRecoveryEnabled = true\n"
        f"{path}DeletionProtectionEnabled = yes\n{path}Tags = team = data , cost=\n"
    )
    loaded = read(text)
    assert getattr(loaded.settings.tables, PREFIXES[prefix]) == TableOptions(
        name="mine",
        billing_mode=BillingMode.PROVISIONED,
        read_capacity=5,
        write_capacity=6,
        point_in_time_recovery=True,
        deletion_protection=True,
        tags=(("team", "data"), ("cost", "")),
    )
    assert loaded.warnings == ()


def test_the_lease_table_may_be_provisioned_with_javas_capacities() -> None:
    text = "leaseTableBillingMode = PROVISIONED\ninitialLeaseTableWriteCapacity = 20\n"
    options = read(text).settings.tables.leases
    assert (options.billing_mode, options.read_capacity, options.write_capacity) == (
        BillingMode.PROVISIONED,
        10,
        20,
    )


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_provisioned_table_without_capacities_is_refused(prefix: str) -> None:
    (line,) = refusals(f"{prefix}ReadCapacity = 5\n{prefix}BillingMode = PROVISIONED\n")
    assert line.startswith("app.properties:5:")
    assert f"{prefix}BillingMode" in line
    assert f"needs {prefix}WriteCapacity, above 0" in line


@pytest.mark.parametrize("key", ["initialLeaseTableReadCapacity", "coordinatorStateWriteCapacity"])
def test_capacities_of_a_table_on_demand_have_no_effect_and_say_so(key: str) -> None:
    assert events(f"{key} = 5\n") == [("property_has_no_effect", key, 4)]


def test_a_capacity_of_none_is_javas_default_and_nothing_to_tell() -> None:
    assert events("workerMetricsReadCapacity = 0\n") == []


@pytest.mark.parametrize("word", ["single", "SINGLE", " Single "])
def test_a_new_application_may_ask_for_one_table(word: str) -> None:
    assert read(f"metadataTableLayout = {word}\n").settings.tables.layout is TableLayout.SINGLE


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("metadataTableLayout = both", "allowed: SEPARATE or SINGLE"),
        ("coordinatorStateBillingMode = ON_DEMAND", "allowed: PAY_PER_REQUEST or PROVISIONED"),
        ("leaseTableTags = team", "'team' is not a tag"),
        ("leaseTableTags = a=b,,c=d", "'' is not a tag"),
        ("leaseTableTags = =b", "'=b' is not a tag"),
        ("leaseTableTags = " + "k" * 129 + "=b", "is not a tag"),
        ("leaseTableTags = aws:x=y", "reserved by AWS"),
        ("leaseTableTags = " + ",".join(f"k{number}=v" for number in range(51)), "more than 50 tags"),
        ("initialLeaseTableReadCapacity = 0", "out of range"),
        ("workerMetricsReadCapacity = -1", "out of range"),
        ("coordinatorStateTableName = a b", "not a valid name"),
        ("workerId = Leader", "not a valid name"),
        ("workerId = Migration3.0", "not a valid name"),
        ("workerId = shardId-000000000001", "not a valid name"),
    ],
)
def test_a_wrong_value_of_tables_or_worker_id_is_refused_with_the_reason(line: str, reason: str) -> None:
    (reported,) = refusals(f"{line}\n")
    assert reason in reported


@pytest.mark.parametrize("worker_id", ["Leader-1", "leader", "shardId-eater", "TableMigration3.5.1"])
def test_worker_ids_that_only_resemble_rows_are_fine(worker_id: str) -> None:
    assert read(f"workerId = {worker_id}\n").settings.worker_id == worker_id


@pytest.mark.parametrize("key", ["workerMetricsTableName", "coordinatorStateTags", "leaseTableTags"])
def test_an_empty_value_is_no_value_where_java_says_so(key: str) -> None:
    assert read(f"{key} =\n").settings == read().settings


def test_a_move_into_one_table_is_asked_for_and_takes_a_day_to_be_final() -> None:
    assert (read().settings.tables.migrate_all, read().settings.tables.complete_bake_s) == (False, 86_400)
    text = "migrateAllEntitiesToLeaseTable = true\ntableMigrationCompleteBakeTimeSeconds = 7200\n"
    loaded = read(text)
    assert (loaded.settings.tables.migrate_all, loaded.settings.tables.complete_bake_s) == (True, 7200)
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("given", "used", "event"),
    [
        ("0", 86_400, "property_raised"),
        ("60", 3_600, "property_raised"),
        ("1000000", 604_800, "property_lowered"),
        ("3600", 3_600, None),
    ],
)
def test_a_bake_time_is_brought_to_what_kcl_allows(given: str, used: int, event: str | None) -> None:
    key = "tableMigrationCompleteBakeTimeSeconds"
    assert read(f"{key} = {given}\n").settings.tables.complete_bake_s == used
    assert events(f"{key} = {given}\n") == ([] if event is None else [(event, key, 4)])


def test_a_bake_time_is_no_negative_number() -> None:
    assert refusals("tableMigrationCompleteBakeTimeSeconds = -1\n")
