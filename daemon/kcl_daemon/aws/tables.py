"""Making sure that a table is there: found and fit, or created as Java workers would find it right.

Owns the definition of our tables. Never alters a table that exists. Knows nothing of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from kcl_daemon.aws.lanes import TableLanes
from kcl_daemon.errors import ConfigurationError, TableNotFound, Unavailable
from kcl_daemon.leases.row import OWNER, OWNER_INDEX
from kcl_daemon.ports import Clock

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import CreateTableInputTypeDef, TableDescriptionTypeDef

# KCL: LeaseManagementConfig waits as long.
READY_WITHIN_S: Final = 600.0
_POLL_FIRST_S: Final = 0.2
_POLL_MOST_S: Final = 2.0
_POLL_GROWTH: Final = 1.5
# A table that Java workers are adding their index to is UPDATING, and can be used.
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})
_PASSING: Final = frozenset({"CREATING", "DELETING"})


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table must be.

    Args:
        name: in DynamoDB.
        key_attribute: of type S, the whole key.
        has_owner_index: whether it is created with, and asked through, the index by lease owner.
    """

    name: str
    key_attribute: str
    has_owner_index: bool = False


class TableMaker:
    """Finds or creates one table.

    Args:
        spec: what it must be.
        client: DynamoDB's.
        lanes: for the calls.
        clock: for the pauses.
        ready_within_s: how long to wait for a table that is being created or deleted.
    """

    def __init__(
        self,
        spec: TableSpec,
        client: DynamoDBClient,
        lanes: TableLanes,
        *,
        clock: Clock,
        ready_within_s: float = READY_WITHIN_S,
    ) -> None:
        self._spec = spec
        self._client = client
        self._lanes = lanes
        self._clock = clock
        self._ready_within_s = ready_within_s

    async def ensure(self) -> bool:
        """Wait until the table can be used, creating it where there is none; True where this call created it.

        Raises:
            ConfigurationError: a table of this name has another key.
            Unavailable: it could not be used in time, or is in a state that it will not leave by itself.
            AwsError: a call failed otherwise.
        """
        created = False
        pause_s = _POLL_FIRST_S
        give_up_s = self._clock.monotonic() + self._ready_within_s
        while True:
            table = await self._describe()
            if table is None:
                created = await self._create() or created
            elif table.get("TableStatus") in _USABLE:
                check_key_schema(self._spec, table)
                return created
            self._require_hope(table, give_up_s)
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _POLL_GROWTH, _POLL_MOST_S)

    def _require_hope(self, table: TableDescriptionTypeDef | None, give_up_s: float) -> None:
        status = "CREATING" if table is None else str(table.get("TableStatus"))
        if status not in _PASSING:
            raise Unavailable(
                f"table {self._spec.name} cannot be used: it is {status}", operation="DescribeTable"
            )
        if self._clock.monotonic() >= give_up_s:
            raise Unavailable(
                f"table {self._spec.name} is still {status} after {self._ready_within_s:g} s; look at it in DynamoDB",
                operation="DescribeTable",
            )

    async def _describe(self) -> TableDescriptionTypeDef | None:
        call = partial(self._client.describe_table, TableName=self._spec.name)
        try:
            answer = await self._lanes.reads.run("DescribeTable", call)
        except TableNotFound:
            return None
        if "Table" not in answer:
            raise Unavailable("the answer has no Table", operation="DescribeTable")
        return answer["Table"]

    async def _create(self) -> bool:
        """Whether we were the ones; somebody else who creates it at the same moment is as good."""
        request = creation_request(self._spec)
        return await self._lanes.writes.run("CreateTable", lambda: _created(self._client, request))


def _created(client: DynamoDBClient, request: CreateTableInputTypeDef) -> bool:
    try:
        client.create_table(**request)
    except client.exceptions.ResourceInUseException:
        return False
    return True


def creation_request(spec: TableSpec) -> CreateTableInputTypeDef:
    """CreateTable as Java workers do it, but with the index in the same call.

    They only look whether there is an index of that name (KCL: DynamoDBLeaseRefresher).
    """
    request: CreateTableInputTypeDef = {
        "TableName": spec.name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": spec.key_attribute, "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": spec.key_attribute, "AttributeType": "S"}],
    }
    if spec.has_owner_index:
        request["AttributeDefinitions"] = [
            {"AttributeName": spec.key_attribute, "AttributeType": "S"},
            {"AttributeName": OWNER, "AttributeType": "S"},
        ]
        request["GlobalSecondaryIndexes"] = [
            {
                "IndexName": OWNER_INDEX,
                "KeySchema": [
                    {"AttributeName": OWNER, "KeyType": "HASH"},
                    {"AttributeName": spec.key_attribute, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ]
    return request


def check_key_schema(spec: TableSpec, table: TableDescriptionTypeDef) -> None:
    """Refuse a table with another key than ours.

    Raises:
        ConfigurationError: names the table, the key that it has and the one that it should have.
    """
    described = cast("Mapping[str, list[Mapping[str, str]]]", table)
    types = {
        each["AttributeName"]: each["AttributeType"] for each in described.get("AttributeDefinitions", [])
    }
    keys = [
        (each["AttributeName"], types.get(each["AttributeName"], "?"), each["KeyType"])
        for each in described.get("KeySchema", [])
    ]
    expected = [(spec.key_attribute, "S", "HASH")]
    if keys != expected:
        raise ConfigurationError(
            f"DynamoDB table {spec.name} exists with the key {_key_words(keys)}, expected {_key_words(expected)}: it "
            "belongs to something else; choose another applicationName or tableName"
        )


def _key_words(keys: list[tuple[str, str, str]]) -> str:
    return " + ".join(f"{name} ({of_type}, {role})" for name, of_type, role in keys) or "none"
