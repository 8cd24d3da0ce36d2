"""The DynamoDB server as a thing to start and stop."""

from __future__ import annotations

import socket
from threading import enumerate as threads

import pytest

from kcl_local.dynamodb import DynamoDbServer
from tests.process.daemon import wait_until
from tests.process.local import dynamodb_client


def test_every_start_begins_without_tables_and_every_stop_leaves_nothing() -> None:
    before = set(threads())
    for _ in range(2):
        with DynamoDbServer() as server, dynamodb_client(server.url) as client:
            assert client.list_tables()["TableNames"] == []
            client.create_table(
                TableName="leases",
                KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
            assert server.calls == {"ListTables": 1, "CreateTable": 1}
    # One that has just answered ends in its own time; one of tests before may end meanwhile.
    wait_until(lambda: set(threads()) <= before, lambda: f"threads: {threads()}")


def test_a_port_in_use_is_reported_and_can_be_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = DynamoDbServer(taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            server.start()
        server.stop()
    with DynamoDbServer() as another:
        assert another.url.startswith("http://127.0.0.1:")
