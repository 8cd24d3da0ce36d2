"""What is asked of Kinesis, call by call: `kcl_daemon.aws.kinesis`."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber

from kcl_daemon.aws.calls import CallLimiters
from kcl_daemon.aws.kinesis import AwsKinesis
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import IteratorKind, ReadFrom, StreamRef
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.contract.aws_access import local_clients

pytestmark = pytest.mark.anyio

ARN = "arn:aws:kinesis:eu-west-1:210987654321:stream/orders"
SHARD = ShardId("shardId-000000000000")
BY_NAME = (StreamRef("orders"), {"StreamName": "orders"})
BY_ARN = (StreamRef("orders", ARN), {"StreamARN": ARN})


class Script:
    """Kinesis that answers as it was told, in that order, and the adapter over it."""

    def __init__(self, kinesis: AwsKinesis, stubber: Stubber) -> None:
        self.kinesis = kinesis
        self.stubber = stubber

    def expect(self, operation: str, expected: dict[str, Any], answer: dict[str, Any]) -> None:
        self.stubber.add_response(operation, answer, expected)


@pytest.fixture
def script() -> Generator[Script, None, None]:
    with local_clients() as clients:
        stubber = Stubber(clients.kinesis)
        stubber.activate()
        yield Script(AwsKinesis(clients.kinesis, CallLimiters().kinesis), stubber)
        stubber.assert_no_pending_responses()


@pytest.mark.parametrize(("stream", "named"), [BY_NAME, BY_ARN], ids=["by name", "by ARN"])
async def test_shards_are_asked_for_by_the_stream_first_and_then_by_the_token_alone(
    script: Script, stream: StreamRef, named: dict[str, Any]
) -> None:
    script.expect(
        "list_shards",
        {**named, "ShardFilter": {"Type": "AT_TRIM_HORIZON"}},
        {"Shards": [], "NextToken": "token"},
    )
    script.expect("list_shards", {"NextToken": "token"}, {"Shards": []})
    assert await script.kinesis.list_shards(stream, InitialPosition(StartAt.TRIM_HORIZON)) == ()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, {}),
        (InitialPosition(), {"ShardFilter": {"Type": "AT_LATEST"}}),
        (
            InitialPosition(StartAt.TIMESTAMP, 1.25),
            {
                "ShardFilter": {
                    "Type": "AT_TIMESTAMP",
                    "Timestamp": datetime(1970, 1, 1, 0, 0, 1, 250_000, tzinfo=UTC),
                }
            },
        ),
    ],
)
async def test_the_start_becomes_a_filter(
    script: Script, start: InitialPosition | None, expected: dict[str, Any]
) -> None:
    script.expect("list_shards", {"StreamName": "orders", **expected}, {"Shards": []})
    await script.kinesis.list_shards(StreamRef("orders"), start)


@pytest.mark.parametrize(("stream", "named"), [BY_NAME, BY_ARN], ids=["by name", "by ARN"])
@pytest.mark.parametrize(
    ("read_from", "expected"),
    [
        (ReadFrom(IteratorKind.LATEST), {}),
        (
            ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number="7"),
            {"StartingSequenceNumber": "7"},
        ),
        (
            ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=0.5),
            {"Timestamp": datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)},
        ),
    ],
)
async def test_an_iterator_is_asked_for_as_its_kind_wants(
    script: Script, stream: StreamRef, named: dict[str, Any], read_from: ReadFrom, expected: dict[str, Any]
) -> None:
    request = {**named, "ShardId": SHARD, "ShardIteratorType": read_from.kind.value, **expected}
    script.expect("get_shard_iterator", request, {"ShardIterator": "i"})
    assert await script.kinesis.get_shard_iterator(stream, SHARD, read_from) == "i"


@pytest.mark.parametrize(("stream", "named"), [(BY_NAME[0], {}), BY_ARN], ids=["by name", "by ARN"])
async def test_records_are_asked_for_by_iterator_and_arn(
    script: Script, stream: StreamRef, named: dict[str, Any]
) -> None:
    script.expect("get_records", {**named, "ShardIterator": "i", "Limit": 9}, {"Records": []})
    assert (await script.kinesis.get_records(stream, SHARD, "i", 9)).next_iterator is None
