"""What our tables are like: requests to make them, and what is said of those that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from kcl_daemon.aws.tables import TableSpec, check_definition, creation_request, index_request, state_of
from kcl_daemon.config.tables import BillingMode, TableOptions
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import IndexState, TableState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import TableDescriptionTypeDef

INDEX: dict[str, Any] = {
    "IndexName": "LeaseOwnerToLeaseKeyIndex",
    "KeySchema": [
        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
    ],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
PROVISIONED = TableOptions(billing_mode=BillingMode.PROVISIONED, read_capacity=10, write_capacity=7)
THROUGHPUT = {"ReadCapacityUnits": 10, "WriteCapacityUnits": 7}


def spec(options: TableOptions | None = None) -> TableSpec:
    return TableSpec("app", "leaseKey", has_owner_index=True, options=options or TableOptions())


def described(**more: Any) -> TableDescriptionTypeDef:
    """A lease table as DescribeTable tells it."""
    table = {
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
        **more,
    }
    return cast("TableDescriptionTypeDef", table)


def test_by_default_a_table_is_made_on_demand_and_with_nothing_else() -> None:
    assert creation_request(spec()) == {
        "TableName": "app",
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        "GlobalSecondaryIndexes": [INDEX],
    }


def test_a_provisioned_table_shares_its_capacities_with_its_index() -> None:
    request = creation_request(spec(PROVISIONED))
    assert request.get("BillingMode") == "PROVISIONED"
    assert request.get("ProvisionedThroughput") == THROUGHPUT
    assert request.get("GlobalSecondaryIndexes") == [{**INDEX, "ProvisionedThroughput": THROUGHPUT}]


def test_protection_and_tags_are_part_of_the_creation() -> None:
    options = TableOptions(deletion_protection=True, tags=(("team", "data"), ("cost", "7")))
    request = creation_request(spec(options))
    assert request.get("DeletionProtectionEnabled") is True
    assert request.get("Tags") == [{"Key": "team", "Value": "data"}, {"Key": "cost", "Value": "7"}]


def test_an_index_of_a_table_on_demand_has_no_capacities() -> None:
    assert index_request(spec(), described()) == {
        "TableName": "app",
        "AttributeDefinitions": [
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
            {"AttributeName": "leaseKey", "AttributeType": "S"},
        ],
        "GlobalSecondaryIndexUpdates": [{"Create": INDEX}],
    }


@pytest.mark.parametrize("summary", [{}, {"BillingModeSummary": {"BillingMode": "PROVISIONED"}}])
def test_an_index_copies_the_capacities_that_its_table_has_now(summary: dict[str, Any]) -> None:
    table = described(ProvisionedThroughput={**THROUGHPUT, "NumberOfDecreasesToday": 0})
    del table["BillingModeSummary"]
    table.update(cast("TableDescriptionTypeDef", summary))
    request = index_request(spec(), table)
    created = {**INDEX, "ProvisionedThroughput": THROUGHPUT}
    assert request.get("GlobalSecondaryIndexUpdates") == [{"Create": created}]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("ACTIVE", IndexState.ACTIVE),
        ("UPDATING", IndexState.ACTIVE),
        ("CREATING", IndexState.BUILDING),
        ("DELETING", IndexState.BUILDING),
    ],
)
def test_an_index_can_be_asked_when_it_is_built(status: str, state: IndexState) -> None:
    table = described(GlobalSecondaryIndexes=[{"IndexName": "other"}, {**INDEX, "IndexStatus": status}])
    assert state_of(spec(), table) == TableState(state)


def test_a_table_without_our_index_lacks_it() -> None:
    table = described(GlobalSecondaryIndexes=[{"IndexName": "other", "IndexStatus": "ACTIVE"}])
    assert state_of(spec(), table) == TableState(IndexState.ABSENT)


def test_an_existing_table_that_differs_from_its_options_is_reported() -> None:
    asked = TableOptions(
        billing_mode=BillingMode.PROVISIONED, read_capacity=1, write_capacity=1, deletion_protection=True
    )
    assert state_of(spec(asked), described()).differences == (
        "billing mode is PAY_PER_REQUEST, not PROVISIONED",
        "deletion protection is off",
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (
            TableOptions(),
            {"BillingModeSummary": {"BillingMode": "PROVISIONED"}, "DeletionProtectionEnabled": True},
        ),
        (PROVISIONED, {"BillingModeSummary": {}, "ProvisionedThroughput": {"ReadCapacityUnits": 500}}),
        (TableOptions(deletion_protection=True), {"DeletionProtectionEnabled": True}),
    ],
)
def test_a_table_setting_that_the_options_leave_open_is_no_difference(
    options: TableOptions, found: dict[str, Any]
) -> None:
    assert state_of(spec(options), described(**found)).differences == ()


def test_an_index_of_our_name_with_another_key_is_refused_with_advice() -> None:
    wrong = {**INDEX, "KeySchema": [{"AttributeName": "leaseOwner", "KeyType": "HASH"}]}
    with pytest.raises(
        ConfigurationError, match=r"index LeaseOwnerToLeaseKeyIndex of DynamoDB table app .* delete"
    ):
        check_definition(spec(), described(GlobalSecondaryIndexes=[wrong]))


def test_a_table_as_we_make_it_passes() -> None:
    check_definition(spec(), described(GlobalSecondaryIndexes=[INDEX]))
