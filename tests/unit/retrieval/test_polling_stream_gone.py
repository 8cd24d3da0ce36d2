"""Shards and streams that are gone, and positions that are: what is said, and whether a lease ends."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.errors import AccessDenied, InvalidRequest, StreamNotFound, Unavailable
from kcl_daemon.ports import IteratorKind
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import EndOfShard, has_been_trimmed
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.retrieval.stage import Stage, Start, play, texts


def watched(reader: PollingReader, answers: list[bool | None]) -> PollingReader:
    """The same with somebody who knows of the stream: there, not there, or nobody knows; the last answer stays."""

    async def stream_is_there() -> bool:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise Unavailable("no answer")
        return answer

    reader._source = replace(reader._source, stream_is_there=stream_is_there)
    return reader


def test_a_shard_that_its_stream_has_forgotten_ends() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.troubles.append(StreamNotFound("gone"))
        reader = watched(stage.reader(), [True])
        start(reader)
        assert await reader.next() == EndOfShard(())
        assert stage.log.events("warning") == ["shard_not_found"]

    play(scene)


@pytest.mark.parametrize("answer", [False, None])
def test_a_shard_whose_stream_is_gone_does_not_end_and_goes_on_when_it_is_back(answer: bool | None) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        stage.kinesis.troubles.extend([StreamNotFound("gone")] * 5)
        reader = watched(stage.reader(), [answer])
        start(reader)
        with anyio.move_on_after(290.0):
            await reader.next()
        assert len(stage.kinesis.read_at_s) == 5
        assert reader.trouble
        assert await texts(reader, 1) == ["a"]
        assert stage.log.events() == []  # the watch has said it, once for all shards

    play(scene)


def test_a_lease_of_a_shard_that_the_stream_never_had_does_not_end() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        stage.kinesis.troubles.extend([StreamNotFound("gone")] * 3)
        reader = watched(stage.reader(), [True])

        async def never_had() -> bool:
            return False

        reader._source = replace(reader._source, has_forgotten=never_had)
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert stage.log.events() == []

    play(scene)


@pytest.mark.parametrize("refused_s", [60.0, 300.0, 420.0])
def test_at_latest_nothing_is_skipped_while_reads_are_refused(refused_s: float) -> None:
    """An iterator lives for five minutes, and LATEST anew would be after what came meanwhile."""

    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.refusal = AccessDenied("not allowed to read yet")
        reader = stage.reader(LATEST, reports_empty=False)
        start(reader)
        await anyio.sleep(1.0)
        stage.put("a")
        await anyio.sleep(refused_s)
        stage.kinesis.refusal = None
        assert await texts(reader, 1) == ["a"]
        assert [each.kind for each in stage.kinesis.positions].count(IteratorKind.LATEST) == 1

    play(scene)


def test_at_latest_nothing_is_skipped_where_a_child_dies_before_the_first_answer() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.refusal = Unavailable("not yet")
        first = stage.reader(LATEST, reports_empty=False)
        with anyio.move_on_after(0.1):
            await first.run()
        first.close()
        stage.kinesis.refusal = None
        stage.put("a")
        second = stage.reader(LATEST, reports_empty=False)
        start(second)
        await anyio.sleep(3.0)
        stage.put("b")
        assert await texts(second, 2) == ["a", "b"]

    play(scene)


def test_an_answer_that_is_no_end_ends_no_shard() -> None:
    """KCL: DataRetrievalUtil; an end has child shards."""

    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        stage.kinesis.ends = 2
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert stage.log.events("warning") == ["read_failed"] * 2

    play(scene)


def test_a_checkpoint_older_than_the_retention_is_reported_and_reading_goes_on_at_the_oldest_record() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        first, *_ = stage.put("a", "b")
        await anyio.sleep(100.0)
        stage.put("c")
        stage.model.trim("words", 1_770_000_000.0 + 50.0)
        reader = stage.reader(ExtendedSequenceNumber(first))
        start(reader)
        assert await texts(reader, 1) == ["c"]
        assert stage.log.events("warning") == ["position_trimmed"]
        stage.put("d")
        assert await texts(reader, 1) == ["d"]
        assert stage.log.events("warning") == ["position_trimmed"]

    play(scene)


def test_a_checkpoint_whose_record_is_there_is_no_news() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        first, *_ = stage.put("a", "b")
        reader = stage.reader(ExtendedSequenceNumber(first))
        start(reader)
        assert await texts(reader, 1) == ["b"]
        assert stage.log.events() == []

    play(scene)


def test_a_position_of_another_stream_is_an_error_once_and_no_endless_noise() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.troubles.extend([InvalidRequest("did not come from this stream")] * 200)
        reader = stage.reader()
        start(reader)
        await anyio.sleep(3600.0)
        assert stage.log.events("error") == ["position_refused"]
        assert len(stage.log.events("warning")) < 10

    play(scene)


def test_only_a_later_first_record_means_that_something_was_trimmed() -> None:
    assert has_been_trimmed(ExtendedSequenceNumber("10"), "11")
    assert has_been_trimmed(ExtendedSequenceNumber("9", 3), "10")
    assert not has_been_trimmed(ExtendedSequenceNumber("10", 3), "10")
    assert not has_been_trimmed(TRIM_HORIZON, "11")
