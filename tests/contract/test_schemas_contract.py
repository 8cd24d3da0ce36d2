"""What every adapter of the port `Schemas` must do: the Glue Schema Registry (moto's), and the one in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid1

import pytest
from botocore.stub import Stubber

from kcl_daemon.aws.build import build_schemas
from kcl_daemon.errors import AccessDenied, AwsError, SchemaNotFound, Throttled, Unavailable
from kcl_daemon.ports import Schemas
from kcl_local.dynamodb import DynamoDbServer
from tests.contract.aws_access import local_clients
from tests.unit.retrieval.registry import DEFINITION, MemorySchemas

pytestmark = pytest.mark.anyio
Registered = tuple[Schemas, str]
"""An adapter, and the id of a version of the Avro schema `order`."""
RECORD = '{"type": "record", "name": "Order", "doc": "\\u00e9", "fields": [{"name": "id", "type": "long"}]}'


@contextmanager
def in_memory() -> Generator[Registered]:
    version_id = str(uuid1())
    yield MemorySchemas(version_id), version_id


@contextmanager
def glue() -> Generator[Registered]:
    with DynamoDbServer() as server, local_clients(glue=server.url) as clients:
        assert clients.glue is not None
        made = clients.glue.create_schema(
            SchemaName="order", DataFormat="AVRO", Compatibility="NONE", SchemaDefinition=RECORD
        )
        schemas = build_schemas(clients)
        assert schemas is not None
        yield schemas, made["SchemaVersionId"]


BACKENDS: dict[str, tuple[Callable[[], AbstractContextManager[Registered]], str | None]] = {
    "memory": (in_memory, None),
    "glue": (glue, "order"),
}


@pytest.fixture(params=BACKENDS, scope="module")
def registered(request: pytest.FixtureRequest) -> Generator[tuple[Schemas, str, str | None]]:
    open_backend, name = BACKENDS[str(request.param)]
    with open_backend() as (schemas, version_id):
        yield schemas, version_id, name


async def test_a_version_is_reported_whole(registered: tuple[Schemas, str, str | None]) -> None:
    schemas, version_id, name = registered
    reported = await schemas.schema(version_id)
    assert (reported.version_id, reported.data_format) == (version_id, "AVRO")
    assert reported.name == (name or f"schema-{version_id[:4]}")
    assert reported.definition == (RECORD if name else DEFINITION)


async def test_a_version_that_is_not_there_is_told_apart(registered: tuple[Schemas, str, str | None]) -> None:
    with pytest.raises(SchemaNotFound) as caught:
        await registered[0].schema("00000000-0000-0000-0000-000000000000")
    assert caught.value.operation == "GetSchemaVersion"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ThrottlingException", Throttled),
        ("AccessDeniedException", AccessDenied),
        ("InternalServiceException", Unavailable),
    ],
)
async def test_an_error_of_glue_becomes_the_aws_error_of_its_kind(code: str, error: type[AwsError]) -> None:
    with local_clients(glue="http://127.0.0.1:1") as clients:
        schemas = build_schemas(clients)
        assert schemas is not None
        assert clients.glue is not None
        with Stubber(clients.glue) as stub:
            status = 500 if error is Unavailable else 400
            stub.add_client_error("get_schema_version", code, "no", http_status_code=status)
            with pytest.raises(error):
                await schemas.schema(str(uuid1()))


async def test_an_answer_that_lacks_something_is_none() -> None:
    with local_clients(glue="http://127.0.0.1:1") as clients:
        schemas = build_schemas(clients)
        assert schemas is not None
        assert clients.glue is not None
        with Stubber(clients.glue) as stub:
            stub.add_response("get_schema_version", {"SchemaDefinition": "{}"})
            with pytest.raises(Unavailable, match="cannot be understood"):
                await schemas.schema(str(uuid1()))


async def test_there_is_no_client_of_glue_where_nobody_wants_one() -> None:
    with local_clients() as clients:
        assert clients.glue is None
        assert build_schemas(clients) is None
