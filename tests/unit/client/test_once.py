"""Output and position in one transaction: SQLite and DynamoDB (moto) for real, and PostgreSQL where it is installed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from kcl_client import Batch, Record, ShardStart
from kcl_client.once import (
    Conflict,
    Cursor,
    DynamoDbStore,
    Fenced,
    Moved,
    Once,
    OnceProcessor,
    PostgresStore,
    Reader,
    SqliteStore,
    Store,
    TooMuch,
)
from kcl_client.testing import Ending, Report, drive, make_record
from kcl_protocol.messages import Scalar
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.spark.postgres import postgres, programs

SHARD = "shardId-000000000000"
DRIVER = "psycopg"
Fresh = Callable[[], "Kept"]


def at(number: int, sub_number: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), sub_number)


def records(*numbers: int) -> list[Record]:
    return [Record(make_record(f"record {number}", sequence_number=str(number))) for number in numbers]


class Kept:
    """A store, and what is in it besides the position."""

    def __init__(
        self,
        store: Store[Any],
        work: Callable[[Sequence[Record], Any], object],
        read: Callable[[], list[str]],
    ) -> None:
        self.store, self.work, self.read = store, work, read

    def close(self) -> None:
        if isinstance(self.store, SqliteStore | PostgresStore):
            self.store.close()

    def reader(self, token: int) -> Once[Any]:
        reader = Reader(self.store.application, "", SHARD, token)
        return Once(self.store, reader, lambda _seconds: None)


def into_sql(mark: str) -> Callable[[Sequence[Record], Cursor], object]:
    def work(given: Sequence[Record], cursor: Cursor) -> None:
        for record in given:
            cursor.execute(f"INSERT INTO output VALUES ({mark})", (record.sequence_number,))

    return work


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    found = programs()
    if found is None:
        pytest.skip("not run: it needs PostgreSQL's programs (initdb, postgres, psql)")
    pytest.importorskip(DRIVER, reason="not run: it needs psycopg")
    with postgres(found) as server:
        yield f"host=127.0.0.1 port={server.port} user=kcl dbname=postgres"


@pytest.fixture(params=["sqlite", "dynamodb", "postgresql"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fresh]:
    """Makes the store of one process after another, over the same data."""
    made: list[Kept] = []

    def make() -> Kept:
        match request.param:
            case "sqlite":
                kept = in_sqlite(tmp_path / "bank.db")
            case "dynamodb":
                kept = in_dynamodb()
            case _:
                kept = in_postgres(request.getfixturevalue("database"), request.node.name)
        made.append(kept)
        return kept

    with mock_aws() if request.param == "dynamodb" else nullcontext():
        if request.param == "dynamodb":
            make_tables()
        yield make
    for kept in made:
        kept.close()


def in_sqlite(path: Path) -> Kept:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS output (number text)")
    connection.close()

    def read() -> list[str]:
        reading = sqlite3.connect(path)
        found = [row[0] for row in reading.execute("SELECT number FROM output ORDER BY number")]
        reading.close()
        return found

    return Kept(SqliteStore(path, application="app"), into_sql("?"), read)


def in_postgres(conninfo: str, test: str) -> Kept:
    psycopg = pytest.importorskip(DRIVER)
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS output (number text, test text)")

    def work(given: Sequence[Record], cursor: Cursor) -> None:
        for record in given:
            cursor.execute("INSERT INTO output VALUES (%s, %s)", (record.sequence_number, test))

    def read() -> list[str]:
        with psycopg.connect(conninfo) as connection:
            found = connection.execute("SELECT number FROM output WHERE test = %s ORDER BY number", (test,))
            return [row[0] for row in found.fetchall()]

    return Kept(PostgresStore(conninfo, application=f"app {test}"), work, read)


def make_tables() -> None:
    client = dynamodb()
    for name in ("positions", "output"):
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )


def dynamodb() -> Any:
    return boto3.client("dynamodb", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")


def in_dynamodb() -> Kept:
    def work(given: Sequence[Record], entries: list[dict[str, Any]]) -> None:
        entries += [
            {"Put": {"TableName": "output", "Item": {"id": {"S": record.sequence_number}}}}
            for record in given
        ]

    def read() -> list[str]:
        return sorted(item["id"]["S"] for item in dynamodb().scan(TableName="output")["Items"])

    return Kept(DynamoDbStore("positions", application="app", client=dynamodb), work, read)


def test_a_store_keeps_output_and_position_for_the_next_reader(fresh: Fresh) -> None:
    kept = fresh()
    first = kept.reader(1)
    assert first.begin() is None
    assert first.process(records(101, 102), kept.work) == at(102)
    assert first.process(records(102, 103), kept.work) == at(103)
    assert fresh().reader(2).begin() == at(103)
    assert kept.read() == ["101", "102", "103"]


def test_a_position_inside_an_aggregate_comes_back(fresh: Fresh) -> None:
    kept = fresh()
    reader = kept.reader(1)
    reader.begin()
    inside = Record(make_record("x", sequence_number="200", sub_sequence_number=7))
    reader.process([inside], kept.work)
    assert fresh().reader(1).begin() == at(200, 7)


def test_an_earlier_reader_stores_nothing_once_a_later_one_has_begun(fresh: Fresh) -> None:
    old, new = fresh(), fresh()
    paused = old.reader(5)
    paused.begin()
    paused.process(records(101), old.work)
    assert new.reader(6).begin() == at(101)
    with pytest.raises(Fenced, match="token 6"):
        paused.process(records(102), old.work)
    assert new.read() == ["101"]
    with pytest.raises(Fenced):
        fresh().reader(5).begin()


def test_a_transaction_of_a_former_child_with_the_same_token_is_seen(fresh: Fresh) -> None:
    old, new = fresh(), fresh()
    former, present = old.reader(5), new.reader(5)
    former.begin()
    assert present.begin() is None
    former.process(records(101), old.work)  # was on its way when the process was killed
    with pytest.raises(Moved, match="101"):
        present.process(records(101, 102), new.work)
    assert new.read() == ["101"]


def test_output_that_fails_moves_no_position(fresh: Fresh) -> None:
    kept = fresh()
    reader = kept.reader(1)
    reader.begin()

    def fails(given: Sequence[Record], transaction: Any) -> None:
        kept.work(given, transaction)
        raise ValueError("no such account")

    with pytest.raises(ValueError, match="no such account"):
        reader.process(records(101), fails)
    assert kept.read() == []
    assert reader.process(records(101), kept.work) == at(101)


def test_shards_and_streams_do_not_meet(fresh: Fresh) -> None:
    kept = fresh()
    application = kept.store.application
    for number, (stream, shard) in enumerate([("", "a"), ("a", "a"), ("", "b")]):
        reader = Once(kept.store, Reader(application, stream, shard, 1), lambda _seconds: None)
        assert reader.begin() is None
        reader.process(records(101 + number), kept.work)


class Scripted:
    """A store in memory whose commits answer as told."""

    application, stream = "app", ""

    def __init__(self, *answers: Exception | None, most: int = 100) -> None:
        self.answers, self.most = list(answers), most
        self.parts: list[list[str]] = []

    def begin(self, reader: Reader) -> ExtendedSequenceNumber | None:
        return None

    def commit(
        self,
        reader: Reader,
        before: ExtendedSequenceNumber | None,
        after: ExtendedSequenceNumber,
        work: Callable[[list[str]], object],
    ) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        written: list[str] = []
        work(written)
        if len(written) > self.most:
            raise TooMuch
        self.parts.append(written)


def numbers_of(given: Sequence[Record], written: list[str]) -> None:
    written.extend(record.sequence_number for record in given)


def scripted(store: Scripted, pauses: list[float] | None = None) -> Once[list[str]]:
    return Once(store, Reader("app", "", SHARD, 1), ([] if pauses is None else pauses).append)


def test_records_that_do_not_fit_into_one_transaction_are_split() -> None:
    store = Scripted(most=3)
    scripted(store).process(records(*range(101, 109)), numbers_of)
    assert store.parts == [["101", "102"], ["103", "104"], ["105", "106"], ["107", "108"]]


def test_a_single_record_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TooMuch):
        scripted(Scripted(most=0)).process(records(101), numbers_of)


def test_a_conflict_is_tried_again_and_again_but_not_for_ever() -> None:
    store, pauses = Scripted(Conflict(), Conflict()), list[float]()
    assert scripted(store, pauses).process(records(101), numbers_of) == at(101)
    assert pauses == [0.05, 0.1]
    with pytest.raises(Conflict):
        scripted(Scripted(*[Conflict()] * 8)).process(records(101), numbers_of)


def test_two_entries_of_one_item_are_two_transactions() -> None:
    with mock_aws():
        make_tables()
        kept = in_dynamodb()

        one_more = {
            "TableName": "output",
            "Key": {"id": {"S": "sum"}},
            "UpdateExpression": "ADD records :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }

        def count(given: Sequence[Record], entries: list[dict[str, Any]]) -> None:
            entries += [{"Update": one_more} for _ in given]

        reader = kept.reader(1)
        reader.begin()
        reader.process(records(101, 102, 103), count)
        client = dynamodb()
        assert client.get_item(TableName="output", Key={"id": {"S": "sum"}})["Item"]["records"] == {"N": "3"}


class Numbers(OnceProcessor[Cursor]):
    def process(self, batch: Batch, transaction: Cursor) -> None:
        transaction.execute("CREATE TABLE IF NOT EXISTS output (number text)")
        transaction.executemany("INSERT INTO output VALUES (?)", [(each.sequence_number,) for each in batch])


def started(
    path: Path,
    extra: Mapping[str, Scalar],
    kind: type[Numbers] = Numbers,
    start: ExtendedSequenceNumber = TRIM_HORIZON,
) -> object:
    with closing(SqliteStore(path, application="app")) as store:
        return kind(store).initialize(ShardStart(SHARD, start, extra))


def driven(path: Path, token: int, *numbers: int, ending: Ending = Ending.SHUTDOWN) -> Report:
    with closing(SqliteStore(path, application="app")) as store:
        return drive(
            Numbers(store),
            [make_record("x", sequence_number=str(number)) for number in numbers],
            batch_size=2,
            ending=ending,
            fencing_token=token,
        )


def test_the_processor_begins_where_its_store_is_and_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    report = driven(path, 1, 101, 102, 103)
    assert (report.exit_code, report.last_checkpoint) == (0, at(103))
    assert started(path, {"fencingToken": 2}) == at(103)
    again = driven(path, 3, 102, 103, 104, 105, ending=Ending.SHARD_ENDED)
    assert again.exit_code == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT number) FROM output").fetchone() == (5, 5)
    connection.close()


def test_a_fenced_processor_ends_with_words(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    started(path, {"fencingToken": 7})
    report = driven(path, 6, 101)
    assert report.exit_code == 1
    assert "a later reader has begun, with token 7" in str(report.exception)


def test_without_a_token_or_with_lanes_it_refuses_to_start(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with pytest.raises(RuntimeError, match="no fencingToken"):
        started(path, {})
    with pytest.raises(RuntimeError, match="shardConcurrency = 1"):
        started(path, {"fencingToken": 1, "lane": 0, "lanes": 2})


class Unfenced(Numbers):
    allow_unfenced = True


def test_unfenced_it_names_no_position_and_refuses_a_checkpoint_beyond_its_own(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    driven(path, 0, 101, 102)
    assert started(path, {}, Unfenced) is None
    with pytest.raises(RuntimeError, match="beyond the stored position 102"):
        started(path, {}, Unfenced, at(103))


class Picky(Numbers):
    def process(self, batch: Batch, transaction: Cursor) -> None:
        bad = [each for each in batch if each.sequence_number == "3"]
        for record in bad:
            batch.reject(record, "it is three")
        super().process(batch.only([each for each in batch if each not in bad]), transaction)


@pytest.mark.parametrize(
    ("refused", "stored"), [(None, ["1", "2", "4"]), ("InvalidStateException", ["1", "2"])]
)
def test_a_rejected_record_is_a_letter_before_the_transaction_is_stored(
    tmp_path: Path, refused: str | None, stored: list[str]
) -> None:
    path = tmp_path / "output.db"
    with closing(SqliteStore(path, application="app")) as store:
        report = drive(
            Picky(store),
            [make_record("x", sequence_number=str(number)) for number in (1, 2, 3, 4)],
            batch_size=2,
            dead_letters=True,
            reject_errors=[refused],
            fencing_token=7,
        )
    assert report.rejected == (() if refused else ((at(3), "it is three"),))
    assert (report.exit_code == 0) is (refused is None)
    with closing(sqlite3.connect(path)) as database:
        assert [number for (number,) in database.execute("SELECT number FROM output")] == stored
