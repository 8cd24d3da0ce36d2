"""Making sure that a table is there: found and fit, or created as Java workers would find it right.

Owns the calls that describe, make and extend a table; `definitions` says what ours are like. Knows nothing of rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from kcl_daemon.aws.definitions import (
    TableSpec,
    check_definition,
    check_table_key,
    creation_request,
    index_request,
    state_of,
)
from kcl_daemon.aws.lanes import TableLanes
from kcl_daemon.errors import InvalidRequest, TableNotFound, Unavailable
from kcl_daemon.leases.row import OWNER_INDEX
from kcl_daemon.ports import Clock, TableState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import CreateTableInputTypeDef, TableDescriptionTypeDef

# KCL: LeaseManagementConfig waits as long.
READY_WITHIN_S: Final = 600.0
_POLL_FIRST_S: Final = 0.2
_POLL_MOST_S: Final = 2.0
_POLL_GROWTH: Final = 1.5
# A table that is being given an index is UPDATING, and can be used.
_USABLE: Final = frozenset({"ACTIVE", "UPDATING"})
_PASSING: Final = frozenset({"CREATING", "DELETING"})
_TO_COME: Final[TableDescriptionTypeDef] = {"TableStatus": "CREATING"}


class TableMaker:
    """Finds, creates or extends one table.

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

    async def describe(self) -> TableState | None:
        """As the port says.

        Raises:
            ConfigurationError: a table of this name has another key.
        """
        table = await self._describe()
        if table is None:
            return None
        check_table_key(self._spec, table)
        return state_of(self._spec, table)

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
                # DynamoDB takes seconds to make a table; stand-ins of it answer with one that is ready.
                made = await self._create()
                created, table = created or made is not None, made or _TO_COME
            if table.get("TableStatus") in _USABLE:
                check_definition(self._spec, table)
                return created
            self._require_hope(str(table.get("TableStatus")), give_up_s)
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _POLL_GROWTH, _POLL_MOST_S)

    async def add_index(self) -> None:
        """Ask for the index by owner; it is built while the table is in use.

        Raises:
            TableNotFound: there is no table.
            Unavailable: the table is being changed in another way just now.
            InvalidRequest: among others, there is such an index by now.
            AwsError: a call failed otherwise.
        """
        table = await self._describe()
        if table is None:
            raise TableNotFound(f"table {self._spec.name} does not exist", operation="UpdateTable")
        request = index_request(self._spec, table)
        await self._lanes.writes.run("UpdateTable", partial(self._client.update_table, **request))

    async def remove_index(self) -> None:
        """Ask for the index by owner to be deleted; the table stays in use meanwhile.

        Raises:
            TableNotFound: there is no table.
            Unavailable: the table is being changed in another way just now.
            InvalidRequest: there is no such index.
            AwsError: a call failed otherwise.
        """
        table = await self._describe()
        if table is None:
            raise TableNotFound(f"table {self._spec.name} does not exist", operation="UpdateTable")
        if not any(
            index.get("IndexName") == OWNER_INDEX for index in table.get("GlobalSecondaryIndexes", [])
        ):
            raise InvalidRequest(f"table {self._spec.name} has no index by owner", operation="UpdateTable")
        call = partial(
            self._client.update_table,
            TableName=self._spec.name,
            GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": OWNER_INDEX}}],
        )
        await self._lanes.writes.run("UpdateTable", call)

    async def enable_recovery(self) -> None:
        """As the port says."""
        call = partial(
            self._client.update_continuous_backups,
            TableName=self._spec.name,
            PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
        )
        await self._lanes.writes.run("UpdateContinuousBackups", call)

    def _require_hope(self, status: str, give_up_s: float) -> None:
        if status not in _PASSING:
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
            answer = await self._lanes.reads.run("DescribeTable", call)
        except TableNotFound:
            return None
        if "Table" not in answer:
            raise Unavailable("the answer has no Table", operation="DescribeTable")
        return answer["Table"]

    async def _create(self) -> TableDescriptionTypeDef | None:
        """The new table; None where somebody else creates it at the same moment, which is as good."""
        request = creation_request(self._spec)
        return await self._lanes.writes.run("CreateTable", lambda: _created(self._client, request))


def _created(client: DynamoDBClient, request: CreateTableInputTypeDef) -> TableDescriptionTypeDef | None:
    try:
        return client.create_table(**request).get("TableDescription", _TO_COME)
    except client.exceptions.ResourceInUseException:
        return None
