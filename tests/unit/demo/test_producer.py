"""Pacing, batches, and what the producer believes when the service takes only a part."""

from __future__ import annotations

from contextlib import closing

import anyio
import pytest
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from kcl_local.demo.check import Checker
from kcl_local.demo.stage import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Producer, WriteRate, batches
from kcl_local.demo.stream import DemoStream, kinesis_client
from kcl_local.demo.text import DemoError, FileFeed, Line

LINES: list[Line] = [Line("key", b"one word"), Line("key", b"two words")]
REQUEST: dict[str, object] = {
    "StreamName": "stream",
    "Records": [{"Data": line.data, "PartitionKey": line.key} for line in LINES],
}
SECOND_ONLY: dict[str, object] = {
    "StreamName": "stream",
    "Records": [{"Data": b"two words", "PartitionKey": "key"}],
}
REFUSED = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Rate exceeded"}


def taken(number: int) -> dict[str, str]:
    return {"SequenceNumber": str(number), "ShardId": "shardId-0"}


@given(st.floats(0, 1e4), st.floats(1, 5e4), st.integers(0, 10**6), st.none() | st.integers(1, 10**6))
def test_never_more_is_due_than_rate_and_cap_allow(
    elapsed: float, rate: float, sent: int, cap: int | None
) -> None:
    due = WriteRate(rate=rate, seconds=1e4, records=cap).due(elapsed, sent)
    assert 0 <= due <= elapsed * rate + 1
    if cap is not None:
        assert sent + due <= max(cap, sent)


def test_the_first_record_is_due_at_once() -> None:
    assert WriteRate(rate=1, seconds=1).due(0.0, 0) == 1


def test_a_cap_ends_the_writing() -> None:
    pace = WriteRate(rate=10, seconds=60, records=5)
    assert not pace.is_done(4)
    assert pace.is_done(5)


@given(st.lists(st.integers(0, 2 * 1024 * 1024), max_size=12), st.integers(0, 1_200))
def test_batches_keep_all_lines_in_order_and_fit_a_request(sizes: list[int], small: int) -> None:
    block = bytes(2 * 1024 * 1024)
    lines = [Line("k", block[:size]) for size in sizes] + [Line("k", b"s")] * small
    groups = list(batches(lines))
    assert [line for group in groups for line in group] == lines
    for group in groups:
        assert 1 <= len(group) <= BATCH_RECORDS_MAX
        assert sum(len(line.data) + len(line.key) for line in group) <= BATCH_BYTES_MAX


def put(*answers: dict[str, object] | str, requests: list[dict[str, object]]) -> Checker:
    """Put LINES against canned answers (a text is an error code); the checker afterwards."""
    checker = Checker()
    with closing(kinesis_client("http://127.0.0.1:1")) as client, Stubber(client) as stub:
        for answer, request in zip(answers, requests, strict=True):
            if isinstance(answer, str):
                stub.add_client_error("put_records", answer, expected_params=request)
            else:
                stub.add_response("put_records", answer, request)
        anyio.run(Producer(DemoStream(client, "stream"), checker).put, LINES)
        stub.assert_no_pending_responses()
    return checker


def test_all_taken_records_are_accounted_with_their_shard_and_words() -> None:
    checker = put({"Records": [taken(1), taken(2)]}, requests=[REQUEST])
    assert checker.written == 2
    assert checker.verdict().words_written == {"one": 1, "two": 1, "word": 1, "words": 1}


def test_only_refused_entries_are_sent_again() -> None:
    checker = put(
        {"FailedRecordCount": 1, "Records": [taken(1), REFUSED]},
        {"Records": [taken(2)]},
        requests=[REQUEST, SECOND_ONLY],
    )
    assert checker.written == 2


def test_a_throttled_call_is_sent_again_whole() -> None:
    checker = put(
        "ProvisionedThroughputExceededException",
        {"Records": [taken(1), taken(2)]},
        requests=[REQUEST, REQUEST],
    )
    assert checker.written == 2


def test_any_other_failure_ends_the_demo() -> None:
    with pytest.raises(DemoError, match="ResourceNotFoundException"):
        put("ResourceNotFoundException", requests=[REQUEST])


def test_an_endpoint_that_is_gone_ends_the_demo() -> None:
    with (
        closing(kinesis_client("http://127.0.0.1:1")) as client,
        pytest.raises(DemoError, match="it is unknown"),
    ):
        anyio.run(Producer(DemoStream(client, "stream"), Checker()).put, LINES)


def test_a_cancelled_producer_that_is_behind_its_pace_writes_nothing_more() -> None:
    async def main(stream: DemoStream) -> None:
        producer = Producer(stream, Checker())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await producer.run(FileFeed("text", iter(LINES * 10_000)), WriteRate(rate=1e9, seconds=60))
        assert scope.cancelled_caught

    with closing(kinesis_client("http://127.0.0.1:1")) as client, Stubber(client):  # any call would fail
        anyio.run(main, DemoStream(client, "stream"))


def test_time_that_is_up_ends_the_writing() -> None:
    async def main(stream: DemoStream) -> None:
        await Producer(stream, Checker()).run(FileFeed("text", iter(LINES)), WriteRate(rate=1e9, seconds=0))

    with closing(kinesis_client("http://127.0.0.1:1")) as client, Stubber(client):
        anyio.run(main, DemoStream(client, "stream"))
