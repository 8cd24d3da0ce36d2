"""The engine's side of the line protocol: what a status and a checkpoint wait for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcl_daemon.records.payload import Payload
from kcl_landing.control import Refused
from kcl_landing.positions import START, Position
from kcl_landing.records import Message, read_frame, read_line
from kcl_landing.relays import RelayConnection, RelayGone
from kcl_protocol.codec import FRAME_START, decode_frame_header, encode
from kcl_protocol.messages import ChildMessage
from kcl_spark.conversation import CheckpointTimings, CommitProgress, RelayConversation, ShardState
from kcl_spark.figures import CaughtUp
from kcl_spark.positions import QueryLog
from kcl_spark.segments import list_segments, read_range
from kcl_spark.spool import Spool
from kcl_spark.stores import FolderStore
from tests.spark.parts import OTHER, SHARD, at, message, no_tell, plan, positions, record, rows

ANY_TIME = CheckpointTimings(checkpoint_s=0, drain_s=5)


def read(said: bytes) -> Message:
    line, _, body = said.partition(b"\n")
    return read_frame(decode_frame_header(line), body) if line.startswith(FRAME_START) else read_line(line)


class ScriptedRelay(RelayConnection):
    """A relay whose daemon says prepared lines."""

    def __init__(self, lines: Iterator[bytes], send: Callable[[bytes], None]) -> None:
        self._said = map(read, lines)
        self._hear = send

    def receive(self, until_s: float | None = None) -> Message | None:
        return next(self._said, None)

    def send(self, message: ChildMessage) -> None:
        self._hear(encode(message))


class World:
    """A conversation with a daemon that says prepared lines, and answers checkpoints."""

    def __init__(self, folder: Path, *, queries: tuple[str, ...] = ("q",)) -> None:
        self.folder = folder
        self.spool = Spool(FolderStore(folder / "spool"), max_bytes=10**9)
        self.progress = CommitProgress(self.spool, {name: QueryLog(folder / name) for name in queries})
        self.progress.poll()
        self.said: list[dict[str, Any]] = []
        self.answers: list[str | None] = []
        self.stopped = False
        self.patience: int | None = None
        """Looks at whether the engine stops, until it does; None: for ever."""
        self._pending: list[bytes] = []

    def commit(self, number: int, query: str = "q") -> None:
        """The query commits a batch that ends with this record."""
        batch = self.progress.batches()[query] + 1
        plan(self.folder / query, batch, positions({SHARD: number}), committed=True)
        self.progress.poll()

    def plan(self, number: int, query: str = "q") -> None:
        batch = self.progress.batches()[query] + 1
        plan(self.folder / query, batch, positions({SHARD: number}), committed=False)
        self.progress.poll()

    def give_to(self, holder: object, checkpoint: int) -> None:
        """Somebody else begins to serve the shard."""
        self.spool.grant(SHARD, at(checkpoint), holder)

    def converse(
        self,
        *script: bytes | Callable[[], None],
        pace: CheckpointTimings = ANY_TIME,
        admit: Callable[[str, Position], None] = lambda _shard, _stored: None,
    ) -> RelayConversation:
        conversation = RelayConversation(
            ScriptedRelay(self._lines(script), self._send),
            stream="words",
            spool=self.spool,
            progress=self.progress,
            pace=pace,
            admit=admit,
            stopping=self._stops,
            log_event=no_tell,
        )
        conversation.run()
        return conversation

    def _stops(self) -> bool:
        if self.patience is not None:
            self.patience -= 1
        return self.stopped or self.patience == 0

    def _lines(self, script: tuple[bytes | Callable[[], None], ...]) -> Iterator[bytes]:
        for step in script:
            while self._pending:
                yield self._pending.pop(0)
            if callable(step):
                step()
            else:
                yield step
        while self._pending:
            yield self._pending.pop(0)

    def _send(self, data: bytes) -> None:
        reported = json.loads(data)
        self.said.append(reported)
        if reported["action"] == "checkpoint":
            error = self.answers.pop(0) if self.answers else None
            self._pending.append(json.dumps({**reported, "error": error}).encode())

    @property
    def checkpoints(self) -> list[str | None]:
        return [each["sequenceNumber"] for each in self.said if each["action"] == "checkpoint"]


def initialize(stored: str = "TRIM_HORIZON") -> bytes:
    return message("initialize", shardId=SHARD, sequenceNumber=stored, subSequenceNumber=0)


def records(first: int, last: int) -> bytes:
    each = [record(number) for number in range(first, last + 1)]
    return message("processRecords", records=each, millisBehindLatest=0)


def frame(first: int, last: int) -> bytes:
    """The same as `records`."""
    payload, behind_ms = Payload.of_line(records(first, last))
    return payload.frame(behind_ms)


EMPTY = message("processRecords", records=[], millisBehindLatest=0)


def test_every_action_is_answered_with_one_status(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(
        initialize(),
        records(0, 9),
        message("shutdownRequested"),
        message("leaseLost"),
        pace=CheckpointTimings(60, 0),
    )
    assert [each["responseFor"] for each in world.said] == [
        "initialize",
        "processRecords",
        "shutdownRequested",
        "leaseLost",
    ]


def test_nothing_is_checkpointed_that_is_not_committed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(initialize(), records(0, 9), lambda: world.plan(9), EMPTY)
    assert world.checkpoints == []


def test_a_commit_is_checkpointed_in_the_next_call_even_if_that_is_empty(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(initialize(), records(0, 9), lambda: world.commit(7), EMPTY, EMPTY)
    assert world.checkpoints == ["7"]


def test_the_slowest_query_counts(tmp_path: Path) -> None:
    world = World(tmp_path, queries=("q", "slow"))
    world.converse(
        initialize(),
        records(0, 9),
        lambda: world.commit(9),
        EMPTY,
        lambda: world.commit(4, "slow"),
        EMPTY,
    )
    assert world.checkpoints == ["4"]


def test_a_checkpoint_never_goes_beyond_what_was_delivered_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(50)
    world.converse(initialize("10"), records(11, 30), records(31, 60))
    assert world.checkpoints == ["30", "50"]


def test_redelivered_records_are_not_spooled_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit(50)
    conversation = world.converse(initialize("10"), records(11, 60))
    assert conversation.state.records == 10
    assert conversation.state.trimmed == 40


def test_checkpoints_keep_their_distance(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(
        initialize(),
        records(0, 9),
        lambda: world.commit(9),
        EMPTY,
        pace=CheckpointTimings(checkpoint_s=3600, drain_s=5),
    )
    assert world.checkpoints == []


def test_the_end_of_a_shard_is_checkpointed_when_all_of_it_is_committed(tmp_path: Path) -> None:
    world = World(tmp_path)
    conversation = world.converse(
        initialize(),
        records(0, 9),
        lambda: world.commit(9),
        message("shardEnded"),
        pace=CheckpointTimings(3600, 5),
    )
    assert world.checkpoints == [None]
    assert conversation.state.ended


def test_the_end_of_a_shard_waits(tmp_path: Path) -> None:
    world = World(tmp_path)

    def stop() -> None:
        world.stopped = True

    with pytest.raises(RelayGone):
        world.converse(initialize(), records(0, 9), stop, message("shardEnded"))
    assert world.checkpoints == []
    assert [each["action"] for each in world.said] == ["status", "status"]


def test_a_quiet_shard_that_came_from_elsewhere_ends_where_its_checkpoint_is(tmp_path: Path) -> None:
    """Its books are empty here: another host has done what the checkpoint covers, and nothing came since."""
    world = World(tmp_path)
    plan(tmp_path / "q", 0, {OTHER: at(77)}, committed=True)
    world.progress.poll()
    world.patience = 3
    conversation = world.converse(initialize("500"), EMPTY, message("shardEnded"))
    assert world.checkpoints == [None]
    assert conversation.state.ended


def test_a_shard_that_came_from_elsewhere_ends_when_what_came_here_is_committed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.patience = 3
    with pytest.raises(RelayGone):
        world.converse(initialize("500"), records(501, 509), message("shardEnded"))
    assert world.checkpoints == []


def test_a_quiet_shard_that_came_from_elsewhere_is_given_up_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.patience = 3
    world.converse(initialize("500"), EMPTY, message("shutdownRequested"), pace=CheckpointTimings(3600, 3600))
    assert world.said[-1]["responseFor"] == "shutdownRequested"


def test_all_is_read_where_a_shard_has_nothing_behind_its_checkpoint() -> None:
    state = ShardState(SHARD, behind_ms=0, checkpoint=at(500))
    mark = at(500)
    caught_up = CaughtUp(lambda: [state], lambda _: START, lambda _: mark)
    assert [caught_up.is_so(now_s) for now_s in (0, 4, 6)] == [False, False, True]
    mark = at(501)
    assert not caught_up.is_so(7)


def test_a_throttled_last_checkpoint_is_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.answers = ["ThrottlingException", None]
    conversation = world.converse(initialize(), message("shardEnded"))
    assert world.checkpoints == [None, None]
    assert conversation.state.ended


def test_after_the_lease_is_gone_nothing_is_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.answers = ["ShutdownException"]
    world.converse(
        initialize(), records(0, 9), lambda: world.commit(5), EMPTY, lambda: world.commit(9), EMPTY
    )
    assert world.checkpoints == ["5"]


def test_a_drain_stores_what_is_done(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(
        initialize(),
        records(0, 9),
        lambda: world.commit(9),
        message("shutdownRequested"),
        pace=CheckpointTimings(3600, 5),
    )
    assert world.checkpoints == ["9"]


def test_a_drain_ends_in_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(
        initialize(), records(0, 9), message("shutdownRequested"), pace=CheckpointTimings(3600, 0.01)
    )
    assert world.checkpoints == []
    assert world.said[-1]["responseFor"] == "shutdownRequested"


def test_a_drain_takes_what_lies_within_a_horizon_that_has_closed_meanwhile(tmp_path: Path) -> None:
    """Another shard left first: what is behind its records stays for the next start."""
    world = World(tmp_path)
    world.spool.set_horizon(10**15)

    def close() -> None:
        world.commit(4)
        world.spool.set_horizon(-1)

    closing = threading.Timer(0.2, close)
    script = initialize(), records(0, 9), closing.start, message("shutdownRequested")
    world.converse(*script, pace=CheckpointTimings(3600, 3600))
    closing.join()
    assert world.checkpoints == ["4"]


def test_a_shard_that_waits_for_room_says_so_no_longer_once_another_is_given_back(tmp_path: Path) -> None:
    """The daemon may wait to say that it stops."""
    world = World(tmp_path)
    world.spool = Spool(FolderStore(tmp_path / "small"), max_bytes=1)
    world.spool.grant(OTHER, START, world)
    leaving = threading.Timer(0.2, world.spool.leaves, (OTHER,), {"is_last": False})
    world.converse(initialize(), leaving.start, records(0, 9), message("leaseLost"))
    leaving.join()
    assert [each["responseFor"] for each in world.said][-2:] == ["processRecords", "leaseLost"]


def test_an_end_that_batches_may_not_reach_is_given_back_unconfirmed_when_the_daemon_stops(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.spool.set_horizon(-1)
    world.spool.grant(OTHER, START, world)

    def others_leave() -> None:
        world.spool.leaves(OTHER, is_last=False)
        world.spool.revoke(OTHER, world)

    leaving = threading.Timer(0.2, others_leave)
    conversation = world.converse(initialize(), records(0, 9), leaving.start, message("shardEnded"))
    leaving.join()
    assert world.checkpoints == []
    assert not conversation.state.ended
    assert world.said[-1]["responseFor"] == "shardEnded"


def test_a_shard_that_must_not_be_served_is_refused_before_anything_is_answered(tmp_path: Path) -> None:
    world = World(tmp_path)

    def refuse(shard_id: str, stored: Position) -> None:
        assert (shard_id, stored) == (SHARD, at(17))
        raise Refused("not here")

    with pytest.raises(Refused):
        world.converse(initialize("17"), admit=refuse)
    assert world.said == []


def test_books_of_spark_are_read_as_they_grow(tmp_path: Path) -> None:
    log = QueryLog(tmp_path)
    assert log.read().planned_batch is None
    plan(tmp_path, 0, positions({SHARD: 5}), committed=True)
    plan(tmp_path, 1, positions({SHARD: 9}), committed=False)
    books = log.read()
    assert (books.planned_batch, books.committed_batch) == (1, 0)
    assert (books.planned, books.committed) == (positions({SHARD: 9}), positions({SHARD: 5}))
    plan(tmp_path, 1, positions({SHARD: 9}), committed=True)
    assert log.read().committed == positions({SHARD: 9})
    assert QueryLog(tmp_path).read() == log.read()


def test_a_query_that_does_not_read_the_stream_holds_nothing_back(tmp_path: Path) -> None:
    world = World(tmp_path, queries=("q", "rate"))
    (tmp_path / "rate" / "offsets").mkdir(parents=True)
    (tmp_path / "rate" / "offsets" / "0").write_text("v1\n{}\n17")
    world.converse(initialize(), records(0, 9), lambda: world.commit(7), EMPTY)
    assert world.checkpoints == ["7"]


def test_a_query_that_reads_the_stream_twice_is_as_far_as_the_slower_reading(tmp_path: Path) -> None:
    plan(tmp_path, 0, positions({SHARD: 5}), committed=True)
    with (tmp_path / "offsets" / "0").open("a") as file:
        file.write('\n{"kcl": 1, "s": {"' + SHARD + '": "3/0"}}\n{"topic": 4}')
    assert QueryLog(tmp_path).read().committed == positions({SHARD: 3})


def test_whoever_has_lost_a_shard_to_another_breaks_off_and_adds_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    another = object()
    with pytest.raises(RelayGone):
        world.converse(initialize(), records(0, 9), lambda: world.give_to(another, 4), records(10, 19))
    assert world.spool.mark(SHARD) == at(4)
    assert world.spool.holds(SHARD, another)  # and the end of the one before has changed nothing
    assert [each["responseFor"] for each in world.said] == ["initialize", "processRecords"]


def test_whoever_has_lost_a_shard_does_not_end_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(RelayGone):
        world.converse(
            initialize(),
            records(0, 9),
            lambda: world.commit(9),
            lambda: world.give_to(object(), 4),
            message("shardEnded"),
        )
    assert None not in world.checkpoints


def test_a_shard_is_taken_over_when_the_one_before_lets_go_or_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    one_before = object()
    world.spool.grant(SHARD, at(4), one_before)
    letting_go = threading.Timer(0.2, world.spool.revoke, (SHARD, one_before))
    letting_go.start()
    world.converse(initialize("4"), records(5, 9))  # far from the patience of ten seconds
    letting_go.join()
    assert world.spool.mark(SHARD) == at(9)
    world.spool.grant(SHARD, at(9), one_before)  # and now one that never lets go
    monkeypatch.setattr("kcl_spark.conversation._TAKE_OVER_S", 0.1)
    world.converse(initialize("9"), records(10, 12))
    assert world.spool.mark(SHARD) == at(12)


@pytest.mark.parametrize("form", [records, frame], ids=["lines", "frames"])
def test_lines_and_frames_bring_the_same_records_and_those_that_are_there_are_left_out(
    tmp_path: Path, form: Callable[[int, int], bytes]
) -> None:
    world = World(tmp_path)
    script = (initialize(), form(1, 3), form(2, 5), form(4, 5), lambda: world.spool.flush(SHARD))
    state = world.converse(*script).state
    assert (state.records, state.trimmed) == (5, 4)
    stored = [
        row
        for segment in list_segments(tmp_path / "spool")[SHARD]
        for batch in read_range(str(segment.path(tmp_path / "spool")), START, segment.last)
        for row in batch.to_pylist()
    ]
    assert stored == rows(1, 5).to_pylist()


def test_the_engine_announces_frames(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.converse(initialize(), EMPTY)
    assert [each.get("frames") for each in world.said] == [1, None]
