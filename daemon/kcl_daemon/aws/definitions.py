"""What our tables are like, as requests to make them, and whether a table that exists is one of them.

Pure: knows no SDK call. Attribute for attribute what Java workers make or accept (KCL: DynamoDBLeaseSerializer).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from kcl_daemon.config.table_settings import BillingMode, TableOptions
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.leases.row import OWNER, OWNER_INDEX
from kcl_daemon.ports import IndexState, TableState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import (
        CreateGlobalSecondaryIndexActionTypeDef,
        CreateTableInputTypeDef,
        GlobalSecondaryIndexDescriptionTypeDef,
        KeySchemaElementTypeDef,
        ProvisionedThroughputTypeDef,
        TableDescriptionTypeDef,
        UpdateTableInputTypeDef,
    )

# An index whose capacity is being changed is UPDATING, and can be asked.
_READY: Final = frozenset({"ACTIVE", "UPDATING"})


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table must be.

    Args:
        name: in DynamoDB.
        key_attribute: of type S, the whole key.
        has_owner_index: whether it is created with, and asked through, the index by lease owner.
        options: for its creation.
    """

    name: str
    key_attribute: str
    has_owner_index: bool = False
    options: TableOptions = field(default_factory=TableOptions)


def creation_request(spec: TableSpec) -> CreateTableInputTypeDef:
    """CreateTable as Java workers do it, but with the index in the same call.

    They only look whether there is an index of that name (KCL: DynamoDBLeaseRefresher).
    """
    options = spec.options
    request: CreateTableInputTypeDef = {
        "TableName": spec.name,
        "BillingMode": options.billing_mode.value,
        "KeySchema": [{"AttributeName": spec.key_attribute, "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": spec.key_attribute, "AttributeType": "S"}],
    }
    throughput: ProvisionedThroughputTypeDef | None = None
    if options.billing_mode is BillingMode.PROVISIONED:
        throughput = {
            "ReadCapacityUnits": options.read_capacity,
            "WriteCapacityUnits": options.write_capacity,
        }
        request["ProvisionedThroughput"] = throughput
    if options.deletion_protection:
        request["DeletionProtectionEnabled"] = True
    if options.tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in options.tags]
    if spec.has_owner_index:
        request["AttributeDefinitions"] = [
            {"AttributeName": spec.key_attribute, "AttributeType": "S"},
            {"AttributeName": OWNER, "AttributeType": "S"},
        ]
        request["GlobalSecondaryIndexes"] = [_index(spec, throughput)]
    return request


def index_request(spec: TableSpec, table: TableDescriptionTypeDef) -> UpdateTableInputTypeDef:
    """UpdateTable that adds the index; it gets the capacities that the table has now, where it has any (KCL does the same)."""
    throughput: ProvisionedThroughputTypeDef | None = None
    if _billing_mode(table) is BillingMode.PROVISIONED:
        current = table.get("ProvisionedThroughput", {})
        throughput = {
            "ReadCapacityUnits": current.get("ReadCapacityUnits", 1),
            "WriteCapacityUnits": current.get("WriteCapacityUnits", 1),
        }
    return {
        "TableName": spec.name,
        "AttributeDefinitions": [
            {"AttributeName": OWNER, "AttributeType": "S"},
            {"AttributeName": spec.key_attribute, "AttributeType": "S"},
        ],
        "GlobalSecondaryIndexUpdates": [{"Create": _index(spec, throughput)}],
    }


def state_of(spec: TableSpec, table: TableDescriptionTypeDef) -> TableState:
    """What a described table is like."""
    index = _owner_index(table) if spec.has_owner_index else None
    if index is None:
        state = IndexState.ABSENT
    else:
        state = IndexState.ACTIVE if index.get("IndexStatus") in _READY else IndexState.BUILDING
    return TableState(state, tuple(_differences(spec.options, table)))


def check_definition(spec: TableSpec, table: TableDescriptionTypeDef) -> None:
    """Refuse a table whose key, or an index of our name whose key, is another one than ours.

    Raises:
        ConfigurationError: names the table, the key that it has and the one that it should have.
    """
    check_table_key(spec, table)
    index = _owner_index(table) if spec.has_owner_index else None
    if index is None:
        return
    expected = [(OWNER, "S", "HASH"), (spec.key_attribute, "S", "RANGE")]
    keys = _keys(table, index.get("KeySchema", []))
    if keys != expected:
        raise ConfigurationError(
            f"index {OWNER_INDEX} of DynamoDB table {spec.name} has the key {_key_words(keys)}, expected "
            f"{_key_words(expected)}: delete the index, it is then made anew"
        )


def check_table_key(spec: TableSpec, table: TableDescriptionTypeDef) -> None:
    """Refuse a table whose key is another one than ours.

    Raises:
        ConfigurationError: names the table, the key that it has and the one that it should have.
    """
    expected = [(spec.key_attribute, "S", "HASH")]
    keys = _keys(table, table.get("KeySchema", []))
    if keys != expected:
        kind = "lease table" if spec.has_owner_index else "table of this daemon"
        raise ConfigurationError(
            f"DynamoDB table {spec.name} is no {kind}: its key is {_key_words(keys)}, not {_key_words(expected)}; it "
            "belongs to something else; choose another applicationName or table name"
        )


def _index(
    spec: TableSpec, throughput: ProvisionedThroughputTypeDef | None
) -> CreateGlobalSecondaryIndexActionTypeDef:
    index: CreateGlobalSecondaryIndexActionTypeDef = {
        "IndexName": OWNER_INDEX,
        "KeySchema": [
            {"AttributeName": OWNER, "KeyType": "HASH"},
            {"AttributeName": spec.key_attribute, "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    if throughput is not None:
        index["ProvisionedThroughput"] = throughput
    return index


def _owner_index(table: TableDescriptionTypeDef) -> GlobalSecondaryIndexDescriptionTypeDef | None:
    for index in table.get("GlobalSecondaryIndexes", []):
        if index.get("IndexName") == OWNER_INDEX:
            return index
    return None


def _billing_mode(table: TableDescriptionTypeDef) -> BillingMode:
    """DynamoDB leaves the summary out of tables that have always been provisioned."""
    mode = table.get("BillingModeSummary", {}).get("BillingMode", BillingMode.PROVISIONED.value)
    return BillingMode(mode)


def _differences(options: TableOptions, table: TableDescriptionTypeDef) -> Iterator[str]:
    """What an operator asked for in vain. Capacities are not compared: others may scale them."""
    found = _billing_mode(table)
    if options.billing_mode is BillingMode.PROVISIONED and found is not options.billing_mode:
        yield f"billing mode is {found.value}, not {options.billing_mode.value}"
    if options.deletion_protection and not table.get("DeletionProtectionEnabled", False):
        yield "deletion protection is off"


def _keys(
    table: TableDescriptionTypeDef, schema: list[KeySchemaElementTypeDef]
) -> list[tuple[str, str, str]]:
    defined = cast("list[Mapping[str, str]]", table.get("AttributeDefinitions", []))
    types = {each["AttributeName"]: each["AttributeType"] for each in defined}
    return [
        (each["AttributeName"], types.get(each["AttributeName"], "?"), each["KeyType"]) for each in schema
    ]


def _key_words(keys: list[tuple[str, str, str]]) -> str:
    return " + ".join(f"{name} ({of_type}, {role})" for name, of_type, role in keys) or "none"
