"""`kcl-daemon capacity`: what it reads, what it looks for in the stream, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import replace

import pytest
from click import BadParameter, UsageError

from kcl_daemon.admin.site import AdminAccess, AdminRequest, AdminResponse
from kcl_daemon.app import streams_of
from kcl_daemon.capacity.figures import Alternative, Bound, Capacity, StreamCapacity, capacity_text
from kcl_daemon.cli.application import Application, open_existing
from kcl_daemon.cli.capacity import CapacityAnswers, CapacityNews, CapacityReader, capacity_lines, place_of
from kcl_daemon.config.balance import CapacitySettings
from kcl_daemon.config.metrics_and_page import AdminSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, AwsError, StreamNotFound, Throttled
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.row import RowPut, new_lease_row
from kcl_daemon.leases.text_row import CAPACITY_KEY, text_write
from kcl_daemon.ports import FetchedRecords, IteratorKind, ReadFrom, StreamRef, Tables
from kcl_daemon.records.payload import Payload
from kcl_protocol.messages import Record
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.cli.test_leases_look import SETTINGS, Answers, Stage
from tests.unit.fakes import MemoryLog

ME = WorkerId("w-1")
KEYS = tuple(LeaseKey(f"shardId-{number:012d}") for number in range(12))
NUMBER = ExtendedSequenceNumber("49590338271490256608", 3)
WHOLE = StreamCapacity(None, 8, 840.0, 3.1, 400.0, Bound.CHILD, "it works all the time", 2048.0, 4096.0)
SAID = Capacity(
    0, ME, 2, 1, 3, "the backlog can be done", "14 min behind, draining at 3.1 x", "w-9 says nothing", WHOLE,
    alternatives=(Alternative(3, 540.0, "9 min"),),
)  # fmt: skip
TO_ZERO = replace(SETTINGS, capacity=CapacitySettings(scale_to_zero=True))


class Stream(Answers):
    """Answers each shard with what a test has put there."""

    def __init__(self, answers: Mapping[str, FetchedRecords | AwsError]) -> None:
        super().__init__({})
        self.answers = answers

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        assert limit == 1
        answer = self.answers.get(shard_id, fetched())
        if isinstance(answer, AwsError):
            raise answer
        return answer


def fetched(records: int = 0, *, behind_ms: int | None = 0, ended: bool = False) -> FetchedRecords:
    payload = Payload.of([Record("YQ==", "key", "7", 0)] * records)
    return FetchedRecords(payload, None if ended else "next", behind_ms, ())


def reader(stage: Stage, stream: Stream, settings: Settings = TO_ZERO) -> Awaitable[CapacityReader]:
    async def made() -> CapacityReader:
        opened = await open_existing(Tables(stage.leases, stage.workers, stage.coordinator), settings)
        streams = streams_of(settings, stream, stage.clock, MemoryLog(), table=stage.leases)
        return CapacityReader(Application(opened, stage.leases, stream, streams, stage.clock), settings)

    return made()


async def prepare(stage: Stage, *leases: Lease, said: Capacity | None = None) -> None:
    await stage.make_separate()
    for lease in leases:
        await stage.leases.put(new_lease_row(lease))
    if said is not None:
        write = text_write(CAPACITY_KEY, None, capacity_text(said), key_attribute="key")
        assert isinstance(write, RowPut)
        await stage.coordinator.put(write.row)
    stage.forget_calls()


def at(number: int, checkpoint: ExtendedSequenceNumber = NUMBER) -> Lease:
    return Lease(KEYS[number], 1, checkpoint)


def peeked(
    *leases: Lease, settings: Settings = TO_ZERO, alive: bool = False, **answers: FetchedRecords | AwsError
) -> tuple[tuple[int, str] | None, Stream]:
    """Answers by `shard_1`, or nothing new."""
    stream = Stream({KEYS[int(name.removeprefix("shard_"))]: answer for name, answer in answers.items()})

    async def test() -> tuple[int, str] | None:
        stage = Stage()
        await prepare(stage, *leases)
        if alive:
            await stage.has_worker(stage.workers, ME)
        return (await (await reader(stage, stream, settings)).news()).peeked

    return run_virtual(test), stream


def test_nothing_after_the_checkpoints_wants_no_worker() -> None:
    found, stream = peeked(at(0), at(1), at(2, SHARD_END))
    assert found == (0, "no worker runs, and nothing is left to read in 2 shards")
    after = ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=str(NUMBER.sequence_number))
    assert stream.asked == {KEYS[0]: after, KEYS[1]: after}


@pytest.mark.parametrize(
    ("lease", "answer", "why"),
    [
        (at(1), fetched(1), "has new records"),
        (at(1), fetched(behind_ms=1), "has new records"),
        (at(1), fetched(ended=True), "has ended"),
        (at(1, TRIM_HORIZON), fetched(1), "has new records"),
        (at(1, LATEST), fetched(), "has no checkpoint yet, so nobody knows where to look"),
    ],
)
def test_one_worker_is_wanted_for_what_is_left(lease: Lease, answer: FetchedRecords, why: str) -> None:
    assert peeked(at(0), lease, shard_1=answer)[0] == (1, f"no worker runs, and shard 1 {why}")


def test_nobody_looks_into_the_stream_while_a_worker_lives_or_without_scale_to_zero() -> None:
    for settings, alive in ((TO_ZERO, True), (SETTINGS, False)):
        found, stream = peeked(at(0), settings=settings, alive=alive, shard_0=fetched(1))
        assert found is None
        assert stream.asked == {}


def test_a_peek_ends_at_the_first_record_it_finds() -> None:
    _, stream = peeked(*map(at, range(12)), shard_0=fetched(1))
    assert len(stream.asked) <= 8


def test_a_shard_that_cannot_be_read_leaves_it_open_unless_another_has_something() -> None:
    found, _ = peeked(at(0), at(1), shard_0=Throttled("slow"), shard_1=fetched(1))
    assert found is not None
    assert found[0] == 1
    with pytest.raises(Throttled):
        peeked(at(0), at(1), shard_0=Throttled("slow"))
    with pytest.raises(AccessDenied):
        peeked(at(0), shard_0=AccessDenied("no"))
    assert peeked(at(0), shard_0=StreamNotFound("gone"))[0] is not None


@pytest.mark.parametrize(
    ("age_s", "alive", "is_last"),
    [
        (12.0, True, False),
        (12.0, False, False),
        (61.0, True, False),
        (61.0, False, True),
        (240.0, True, True),
    ],
)
def test_the_word_of_a_leader_that_is_gone_is_the_last(age_s: float, alive: bool, is_last: bool) -> None:
    async def test() -> CapacityNews:
        stage = Stage()
        await prepare(stage, said=replace(SAID, at_ms=stage.clock.wall_ms() - int(age_s * 1000)))
        if alive:
            await stage.has_worker(stage.workers, ME)
        return await (await reader(stage, Stream({}), SETTINGS)).news()

    news = run_virtual(test)
    assert news.is_last_word is is_last
    assert (news.json() or {})["workersWanted"] == 3


def test_capacity_prints_state_workers_wanted_and_the_age_of_the_report() -> None:
    assert list(capacity_lines(CapacityNews(SAID, 12_000))) == [
        "14 min behind, draining at 3.1 x",
        "3 workers wanted (2 now): the backlog can be done",
        "the stream: 8 shards, 14 min behind, speed 3.1 x, 2.0 KiB/s in, 4.0 KiB/s out; held back by child (it works all the time)",
        "with 3 workers: 9 min",
        "not known: w-9 says nothing",
        "said 12 s ago by worker w-1",
    ]
    last = list(capacity_lines(CapacityNews(SAID, 240_000, is_last_word=True, peeked=(0, "nothing is left"))))
    assert (last[1], last[-1]) == (
        "0 workers wanted: nothing is left",
        "the last word of leader w-1, 4 min old",
    )
    assert next(iter(capacity_lines(CapacityNews(None, 0)))).startswith("nothing is known yet")
    assert list(capacity_lines(CapacityNews(None, 0, peeked=(1, "new records")))) == [
        "1 worker wanted: new records"
    ]


def test_a_look_into_the_stream_overrides_the_workers_wanted_by_the_report() -> None:
    document = CapacityNews(SAID, 9_000, peeked=(0, "nothing is left")).json()
    assert document is not None
    assert [document[name] for name in ("workersWanted", "wanted", "reason", "ageSeconds")] == [
        0, 0, "nothing is left", 9.0,
    ]  # fmt: skip
    assert CapacityNews(None, 0).json() is None


def served(
    path: str, stream: Stream, *, said: Capacity | None = None, token: str | None = None, times: int = 1
) -> AdminResponse:
    async def test() -> AdminResponse:
        stage = Stage()
        await prepare(stage, at(0), said=said)
        made = await reader(stage, stream)
        serving = CapacityAnswers(made, stage.clock, AdminAccess("127.0.0.1", token))
        answers = [await serving.answer(AdminRequest("GET", path, "localhost")) for _ in range(times)]
        assert stage.leases.calls.count("scan") <= 1
        return answers[-1]

    return run_virtual(test)


def test_an_autoscaler_is_answered_and_many_requests_cost_one_look() -> None:
    answer = served("/capacity.json", Stream({KEYS[0]: fetched(1)}), said=SAID, times=5)
    assert (answer.status, json.loads(answer.body)["workersWanted"]) == (200, 1)


def test_an_autoscaler_gets_an_error_where_nothing_is_known_or_allowed() -> None:
    assert served("/capacity.json", Stream({KEYS[0]: Throttled("slow")})).status == 503
    assert served("/capacity.json", Stream({}), token="0123456789abcdef").status == 401
    assert served("/status.json", Stream({})).status == 404
    assert served("/livez", Stream({}), token="0123456789abcdef").status == 200


def test_the_serve_option_sets_address_and_port_of_the_page() -> None:
    assert place_of("127.0.0.1:8081", AdminSettings()) == AdminSettings(address="127.0.0.1", port=8081)
    assert place_of("[::1]:0", AdminSettings()).address == "::1"
    assert place_of("0.0.0.0:80", AdminSettings(token="0123456789abcdef")).port == 80
    with pytest.raises(UsageError, match="adminToken"):
        place_of("0.0.0.0:80", AdminSettings())
    for wrong in ("8081", "localhost:8081", "127.0.0.1:x", "127.0.0.1:70000", ""):
        with pytest.raises(BadParameter):
            place_of(wrong, AdminSettings())
