"""Records that carry their number, the producer that writes them, and what it believes about an answer that did not come."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import Stubber

from kcl_client import Record
from kcl_local.demo.stage import WriteRate
from kcl_local.demo.stream import kinesis_client
from kcl_protocol.messages import Record as WireRecord
from kcl_protocol.messages import RecordSchema
from kcl_prove import producer as producer_module
from kcl_prove.account import Account
from kcl_prove.child import Noting
from kcl_prove.numbered import numbered_data, word_of
from kcl_prove.parts import ProveError
from kcl_prove.producer import Numbered, Producer, numbered

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient


RECORDS = list(islice(numbered("run"), 2))
TAKEN = [{"SequenceNumber": str(number), "ShardId": "shardId-0"} for number in range(2)]


def request_of(*records: Numbered) -> dict[str, object]:
    return {
        "StreamName": "stream",
        "Records": [{"Data": record.data, "PartitionKey": record.key} for record in records],
    }


@contextmanager
def producing() -> Generator[tuple[Producer, Account, Stubber, KinesisClient]]:
    client, account = kinesis_client("http://127.0.0.1:9"), Account()
    with Stubber(client) as stubber:
        yield Producer(client, "stream", account), account, stubber, client
        stubber.assert_no_pending_responses()
    client.close()


@pytest.mark.parametrize("size", [0, 100, 5_000])
def test_a_record_has_the_size_that_was_asked_for(size: int) -> None:
    data = numbered_data("run", 7, "key", size)
    assert len(data) == max(size, len(numbered_data("run", 7, "key")))
    assert json.loads(data)["number"] == 7


def test_a_word_shows_every_change() -> None:
    data = numbered_data("run", 7, "key", 200)
    changed = data.replace(b"xxx", b"xyx", 1)
    assert len({word_of(data), word_of(changed), word_of(data, "schema")}) == 3
    assert word_of(data).startswith("7:")


@pytest.mark.parametrize("schema", [None, "record"])
def test_the_child_notes_what_the_producer_expects(
    schema: str | None, tmp_path: Any, wire: Callable[[bytes, str | None], Any]
) -> None:
    record = next(numbered("run", 300, form=lambda data: b"header" + data, schema=schema or ""))
    heard = wire(record.data.removeprefix(b"header"), schema)
    assert Noting(tmp_path).count(heard) == {record.word: 1}


@pytest.fixture
def wire() -> Callable[[bytes, str | None], Any]:
    def made(data: bytes, schema: str | None) -> Record:
        known = None if schema is None else RecordSchema(schema, "id", "JSON", "{}")
        return Record(WireRecord(b64encode(data).decode(), "key", "1", schema=known))

    return made


def test_a_refused_record_is_written_again() -> None:
    refused = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"}
    with producing() as (producer, account, stubber, _):
        stubber.add_response("put_records", {"Records": [TAKEN[0], refused]}, request_of(*RECORDS))
        stubber.add_response("put_records", {"Records": [TAKEN[1]]}, request_of(RECORDS[1]))
        anyio.run(producer.put, RECORDS)
    assert (producer.written, account.checker.written) == (2, 2)


@pytest.mark.parametrize("failure", ["no answer", "server error", "one record failed inside"])
def test_records_put_without_an_answer_are_noted_as_possibly_there_twice(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    with producing() as (producer, account, stubber, client):

        def without_answer(words: Iterable[str]) -> None:
            asked.append(list(words))

        monkeypatch.setattr(account, "without_answer", without_answer)
        if failure == "no answer":
            put, calls = client.put_records, iter([True, False])

            def put_records(**arguments: Any) -> Any:
                if next(calls):
                    raise ReadTimeoutError(endpoint_url="http://127.0.0.1:9")
                return put(**arguments)

            monkeypatch.setattr(client, "put_records", put_records)
        elif failure == "server error":
            stubber.add_client_error("put_records", "InternalFailure", http_status_code=500)
        else:
            failed = {"ErrorCode": "InternalFailure", "ErrorMessage": "no"}
            stubber.add_response("put_records", {"Records": [failed, failed]}, request_of(*RECORDS))
        stubber.add_response("put_records", {"Records": TAKEN}, request_of(*RECORDS))
        anyio.run(producer.put, RECORDS)
    assert [word for words in asked for word in words] == [record.word for record in RECORDS]
    assert producer.written == 2


def test_a_permanent_error_ends_the_producer() -> None:
    with producing() as (producer, _, stubber, _client):
        stubber.add_client_error("put_records", "ResourceNotFoundException", http_status_code=400)
        with pytest.raises(ProveError, match="stream"):
            anyio.run(producer.put, RECORDS)


def test_a_stream_that_throttles_for_long_ends_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "REFUSED_FOR_S_MAX", -1.0)
    with producing() as (producer, _, stubber, _client):
        stubber.add_client_error("put_records", "ThrottlingException", http_status_code=400)
        with pytest.raises(ProveError, match="refused"):
            anyio.run(producer.put, RECORDS)


def test_the_producer_writes_as_many_records_as_its_rate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with producing() as (producer, account, stubber, _):
        for number in range(3):
            stubber.add_response(
                "put_records", {"Records": [{"SequenceNumber": str(number), "ShardId": "s"}]}
            )

        def one(*_: object) -> int:
            return 1

        monkeypatch.setattr(WriteRate, "due", one)
        anyio.run(producer.run, numbered("run"), WriteRate(rate=40, seconds=1, records=3))
    assert account.checker.written == 3
