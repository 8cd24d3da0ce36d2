from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from kcl_daemon.aws.access import TableLimiters
from kcl_daemon.config.tables import BillingMode, TableOptions
from kcl_daemon.errors import ConfigurationError, InvalidRequest, TableNotFound, Unavailable
from kcl_daemon.leases.row import OWNER, OWNER_INDEX
from kcl_daemon.ports import Clock, IndexState, TableState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import (
        CreateGlobalSecondaryIndexActionTypeDef,
        CreateTableInputTypeDef,
        GlobalSecondaryIndexDescriptionTypeDef,
        KeySchemaElementTypeDef,
        ProvisionedThroughputTypeDef,
        TableDescriptionTypeDef,
        UpdateTableInputTypeDef,
    )


# A table is UPDATING while its index is built.
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})
# KCL: LeaseManagementConfig.
READY_WITHIN_S: Final = 600.0
_POLL_FIRST_S: Final = 0.2
_POLL_MOST_S: Final = 2.0
_POLL_GROWTH: Final = 1.5
_TRANSIENT_STATUSES: Final = frozenset({"CREATING", "DELETING"})
_PENDING_STATUSES: Final[TableDescriptionTypeDef] = {"TableStatus": "CREATING"}


@dataclass(frozen=True, slots=True)
class TableSpec:
    name: str
    key_attribute: str
    has_owner_index: bool = False
    options: TableOptions = field(default_factory=TableOptions)


def creation_request(spec: TableSpec) -> CreateTableInputTypeDef:
    """As KCL, but with the index in the same call: Java workers only check its name (KCL: DynamoDBLeaseRefresher)."""
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
    """The index gets the table's current capacities, as in KCL."""
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
    index = _owner_index(table) if spec.has_owner_index else None
    if index is None:
        state = IndexState.ABSENT
    else:
        state = IndexState.ACTIVE if index.get("IndexStatus") in _USABLE else IndexState.BUILDING
    return TableState(state, tuple(_differences(spec.options, table)))


def check_definition(spec: TableSpec, table: TableDescriptionTypeDef) -> None:
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
    """DynamoDB omits the summary if the table was always provisioned."""
    mode = table.get("BillingModeSummary", {}).get("BillingMode", BillingMode.PROVISIONED.value)
    return BillingMode(mode)


def _differences(options: TableOptions, table: TableDescriptionTypeDef) -> Iterator[str]:
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


class TableAdmin:
    def __init__(
        self,
        spec: TableSpec,
        client: DynamoDBClient,
        limiters: TableLimiters,
        *,
        clock: Clock,
        ready_within_s: float = READY_WITHIN_S,
    ) -> None:
        self._spec = spec
        self._client = client
        self._limiters = limiters
        self._clock = clock
        self._ready_within_s = ready_within_s

    async def describe(self) -> TableState | None:
        table = await self._describe()
        if table is None:
            return None
        check_table_key(self._spec, table)
        return state_of(self._spec, table)

    async def ensure(self) -> bool:
        """True: this call created it.

        Raises:
            ConfigurationError: the table has another key.
            Unavailable: it was not usable in time, or never will be.
        """
        created = False
        pause_s = _POLL_FIRST_S
        give_up_s = self._clock.monotonic() + self._ready_within_s
        while True:
            table = await self._describe()
            if table is None:
                # DynamoDB needs seconds; local endpoints create tables at once.
                made = await self._create()
                created, table = created or made is not None, made or _PENDING_STATUSES
            if table.get("TableStatus") in _USABLE:
                check_definition(self._spec, table)
                return created
            self._check_can_succeed(str(table.get("TableStatus")), give_up_s)
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _POLL_GROWTH, _POLL_MOST_S)

    async def add_owner_index(self) -> None:
        """Only starts it; the table stays usable."""
        request = index_request(self._spec, await self._existing())
        await self._limiters.writes.run("UpdateTable", partial(self._client.update_table, **request))

    async def remove_owner_index(self) -> None:
        if _owner_index(await self._existing()) is None:
            raise InvalidRequest(f"table {self._spec.name} has no index by owner", operation="UpdateTable")
        call = partial(
            self._client.update_table,
            TableName=self._spec.name,
            GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": OWNER_INDEX}}],
        )
        await self._limiters.writes.run("UpdateTable", call)

    async def enable_recovery(self) -> None:
        call = partial(
            self._client.update_continuous_backups,
            TableName=self._spec.name,
            PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
        )
        await self._limiters.writes.run("UpdateContinuousBackups", call)

    def _check_can_succeed(self, status: str, give_up_s: float) -> None:
        if status not in _TRANSIENT_STATUSES:
            raise Unavailable(
                f"table {self._spec.name} cannot be used: it is {status}", operation="DescribeTable"
            )
        if self._clock.monotonic() >= give_up_s:
            raise Unavailable(
                f"table {self._spec.name} is still {status} after {self._ready_within_s:g} s; check it "
                "in DynamoDB",
                operation="DescribeTable",
            )

    async def _describe(self) -> TableDescriptionTypeDef | None:
        call = partial(self._client.describe_table, TableName=self._spec.name)
        try:
            answer = await self._limiters.reads.run("DescribeTable", call)
        except TableNotFound:
            return None
        if "Table" not in answer:
            raise Unavailable("the answer has no Table", operation="DescribeTable")
        return answer["Table"]

    async def _existing(self) -> TableDescriptionTypeDef:
        table = await self._describe()
        if table is None:
            raise TableNotFound(f"table {self._spec.name} does not exist", operation="UpdateTable")
        return table

    async def _create(self) -> TableDescriptionTypeDef | None:
        request = creation_request(self._spec)
        return await self._limiters.writes.run("CreateTable", lambda: _created(self._client, request))


def _created(client: DynamoDBClient, request: CreateTableInputTypeDef) -> TableDescriptionTypeDef | None:
    try:
        return client.create_table(**request).get("TableDescription", _PENDING_STATUSES)
    except client.exceptions.ResourceInUseException:
        return None
