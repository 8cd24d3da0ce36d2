"""`kcl-daemon letters` against S3, SQS and Kinesis on loopback."""

from __future__ import annotations

import hashlib
import json
import sys
from base64 import b64encode
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import anyio
import boto3
import pytest
from botocore.response import StreamingBody
from click.testing import CliRunner, Result
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

from kcl_daemon.cli import main
from kcl_daemon.config.dead_letters import DESTINATION, OVERFLOW
from kcl_daemon.config.services import Endpoints
from kcl_daemon.destinations import s3 as bucket
from kcl_daemon.records.dead_letter import DeadLetter
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.process.local import in_process
from tests.unit.consumer.letters import LETTER, letter

ACCOUNT = "123456789012"
BUCKET = "letters"
# Answers everything, rejects what it is told to, writes down what it got.
PROGRAM = """
import base64, hashlib, json, sys
for line in sys.stdin:
    said = json.loads(line)
    for record in said.get("records", ()):
        data = base64.b64decode(record["data"])
        print(record["sequenceNumber"], len(data), hashlib.sha256(data).hexdigest(), file=open(sys.argv[1], "a"))
        if record["sequenceNumber"] in sys.argv[2:]:
            print(json.dumps({"action": "reject", "sequenceNumber": record["sequenceNumber"],
                              "subSequenceNumber": record["subSequenceNumber"], "reason": "again"}), flush=True)
            assert json.loads(sys.stdin.readline())["error"] is None
    print(json.dumps({"action": "status", "responseFor": said["action"]}), flush=True)
"""


@contextmanager
def moto(service: Literal["s3", "sqs"]) -> Generator[tuple[str, Any], None, None]:
    """Where it answers, and a client of it."""
    server = make_server("127.0.0.1", 0, create_backend_app(service), threaded=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    # Any: boto3 has no stubs here for these services.
    client: Any = boto3.client(service, endpoint_url=url, region_name=REGION)
    try:
        yield url, client
    finally:
        client.close()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def access(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    with credentials_that_nobody_checks():
        monkeypatch.setenv("AWS_REGION", REGION)
        yield


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Generator[Any, None, None]:
    with moto("s3") as (url, client):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        client.create_bucket(Bucket=BUCKET)
        yield client
        for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=each["Key"])
        client.delete_bucket(Bucket=BUCKET)


def put(s3: Any, letter: DeadLetter, data: bytes, prefix: str = "dead/") -> str:
    """As the daemon stores it; the key of the data."""
    record = letter.record
    place = f"{letter.application_name}/{letter.stream_name}/{letter.shard_id}"
    key = f"{prefix}{place}/{int(record.sequence_number):056}-{record.sub_sequence_number:010}"
    fields = {name: value for name, value in json.loads(letter.line()).items() if name != "data"}
    s3.put_object(Bucket=BUCKET, Key=key, Body=data)
    s3.put_object(Bucket=BUCKET, Key=f"{key}.json", Body=json.dumps({**fields, "dataBytes": len(data)}))
    return key


def keys(s3: Any) -> list[str]:
    return [each["Key"] for each in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, ["letters", *words])


def listed(*words: str) -> list[str]:
    document = json.loads(invoke("list", *words, "--json").stdout)
    return [each["sequenceNumber"] for each in document["letters"]]


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return (
        "--log-level",
        "error",
        "--",
        sys.executable,
        "-S",
        str(tmp_path / "program.py"),
        str(tmp_path / "got"),
    )


def got(tmp_path: Path) -> list[str]:
    """The numbers of the records, in the order of their delivery."""
    return [line.split()[0] for line in (tmp_path / "got").read_text().splitlines()]


def test_letters_in_a_bucket_come_back(s3: Any, tmp_path: Path, program: tuple[str, ...]) -> None:
    source = f"s3://{BUCKET}/dead"
    for number in (3, 20, 1):
        put(s3, letter(number), b"x" * number)
    put(s3, replace(letter(7), stream_name="others"), b"7", prefix="dead/2026-11-22/")
    put(s3, letter(9), b"9", prefix="dead-too/")
    assert listed(source) == ["1", "3", "20", "7"]
    assert listed(f"{source}?folders=day") == ["1", "3", "20", "7"]
    assert invoke("show", source, "20-7", "--raw").stdout_bytes == b"x" * 20
    receipts = str(tmp_path / "receipts")
    done = invoke("replay", source, "--receipts", receipts, "--delete-done", *program, "3")
    assert (done.exit_code, got(tmp_path)) == (1, ["1", "3", "20", "7"])
    assert "rejected 000000000003-3-7: again" in done.stdout
    assert listed(source) == ["3"]
    again = invoke("replay", source, "--receipts", receipts, "--delete-done", *program)
    assert (again.exit_code, got(tmp_path)[4:]) == (0, ["3"])
    assert [key for key in keys(s3) if not key.startswith("dead-too")] == []
    assert invoke("delete", f"s3://{BUCKET}", "--all", "--yes").stdout == "deleted 1 letter\n"
    assert keys(s3) == []


async def _store(destination: str, overflow: str | None, letters: Sequence[DeadLetter]) -> None:
    over = None if overflow is None else OVERFLOW.read(overflow)
    async with DESTINATION.read(destination).writer(Endpoints(REGION), over) as stores:
        for each in letters:
            await stores.store(each)


@pytest.mark.usefixtures("s3")
def test_letters_that_a_daemon_stored_in_a_bucket_are_replayed_and_deleted(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    source = f"s3://{BUCKET}/dead?folders=day"
    anyio.run(_store, source, None, [letter(2), replace(letter(1), application_name="b / c")])
    assert listed(source) == ["1", "2"]
    assert invoke("replay", source, "--delete-done", *program).exit_code == 0
    assert listed(source) == []


@pytest.mark.usefixtures("s3")
def test_a_daemons_letter_that_is_too_large_for_its_queue_comes_back(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    data = b"\x00large" * 200_000
    large = replace(LETTER, record=replace(LETTER.record, data=b64encode(data).decode()))
    with queue() as (source, client, address):
        anyio.run(_store, source, f"s3://{BUCKET}/over", [large, letter(1)])
        assert waiting(client, address) == 2
        there = ("--data-at", f"s3://{BUCKET}/over")
        assert invoke("show", source, LETTER.key, "--raw", *there).stdout_bytes == data
        assert listed(f"s3://{BUCKET}/over") == ["4951"], "it can be found there, too"
        assert invoke("replay", source, "--delete-done", *there, *program).exit_code == 0
        assert got(tmp_path) == ["1", "4951"]
        assert listed(source) == []
    assert listed(f"s3://{BUCKET}/over") == ["4951"]


def test_ten_mebibytes_come_back_byte_for_byte(s3: Any, tmp_path: Path, program: tuple[str, ...]) -> None:
    data = bytes(range(256)) * 40_960
    key = put(s3, LETTER, data, prefix="")
    assert invoke("show", f"s3://{BUCKET}", LETTER.key, "--raw").stdout_bytes == data
    done = invoke("replay", f"s3://{BUCKET}", "--delete-done", *program)
    assert done.exit_code == 0
    number, length, digest = (tmp_path / "got").read_text().split()
    assert (number, length) == ("4951", str(10 * 1024**2))
    assert digest == hashlib.sha256(data).hexdigest()
    assert key not in keys(s3)


def test_many_letters_have_many_pages(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_PAGE_KEYS", 7)
    monkeypatch.setattr(bucket, "_DELETED_AT_ONCE", 3)
    for number in range(20):
        put(s3, letter(number), b"")
    assert listed(f"s3://{BUCKET}/dead") == [str(number) for number in range(20)]
    assert invoke("delete", f"s3://{BUCKET}/dead", "--all", "--yes").exit_code == 0
    assert keys(s3) == []


def test_broken_letters_in_a_bucket_are_named_and_skipped(
    s3: Any, tmp_path: Path, program: tuple[str, ...]
) -> None:
    lost, cut, orphan = (put(s3, letter(number), b"12") for number in (1, 2, 3))
    put(s3, letter(4), b"4")
    s3.delete_object(Bucket=BUCKET, Key=lost)
    s3.put_object(Bucket=BUCKET, Key=cut, Body=b"1")
    s3.delete_object(Bucket=BUCKET, Key=f"{orphan}.json")
    s3.put_object(Bucket=BUCKET, Key="dead/notes.json", Body=b"hello")
    s3.put_object(Bucket=BUCKET, Key="dead/large.json", Body=b" " * (1024**2 + 1))
    done = invoke("replay", f"s3://{BUCKET}/dead", "--receipts", str(tmp_path / "receipts"), *program)
    assert (done.exit_code, got(tmp_path)) == (1, ["4"])
    for said in (
        f"{lost}.json: s3://{BUCKET}/{lost} does not exist; skipped",
        "has 1 bytes, the letter says 2; skipped",
        f"{orphan}: without .json beside it",
        "dead/notes.json: not JSON",
        "dead/large.json: 1048577 bytes",
    ):
        assert said in done.stderr
    assert invoke("show", f"s3://{BUCKET}/dead", "1-7").exit_code == 1


def test_a_bucket_that_is_not_there_is_one_line(s3: Any) -> None:
    done = invoke("list", "s3://no-such-bucket/x")
    assert done.exit_code == 1
    assert "NoSuchBucket" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@contextmanager
def queue(**attributes: str) -> Generator[tuple[str, Any, str], None, None]:
    """Its source, a client and its URL."""
    with moto("sqs") as (url, client):
        name = "dead.fifo" if attributes else "dead"
        address = f"{url}/{ACCOUNT}/{name}"
        client.create_queue(QueueName=name, Attributes=attributes)
        yield f"sqs:{address}", client, address
        client.delete_queue(QueueUrl=address)


def waiting(client: Any, address: str) -> int:
    """Messages that anybody may receive."""
    name = "ApproximateNumberOfMessages"
    return int(client.get_queue_attributes(QueueUrl=address, AttributeNames=[name])["Attributes"][name])


def test_a_queue_is_looked_into_and_nothing_is_consumed() -> None:
    with queue() as (source, client, address):
        for number in range(1, 13):
            client.send_message(QueueUrl=address, MessageBody=letter(number).line().decode())
        client.send_message(QueueUrl=address, MessageBody="hello")
        done = invoke("list", source)
        assert done.exit_code == 1
        assert done.stdout.startswith("12 letters")
        assert "not JSON" in done.stderr
        assert waiting(client, address) == 13
        assert invoke("show", source, "12-7", "--raw").stdout_bytes == b"poison"
        assert waiting(client, address) == 13


def test_letters_of_a_queue_come_back(tmp_path: Path, program: tuple[str, ...]) -> None:
    with queue() as (source, client, address):
        wrapped = json.dumps({"Type": "Notification", "Message": letter(2).line().decode()})
        for body in (
            letter(3).line().decode(),
            wrapped,
            letter(1).line().decode(),
            letter(1).line().decode(),
        ):
            client.send_message(QueueUrl=address, MessageBody=body)
        done = invoke("replay", source, "--delete-done", "--batch", "1", *program, "3")
        assert (done.exit_code, got(tmp_path)) == (1, ["1", "2", "3"])
        assert waiting(client, address) == 1, "what was rejected is given back"
        assert listed(source) == ["3"]
        assert invoke("delete", source, "--all", "--yes").stdout == "deleted 1 letter\n"
        assert listed(source) == []


def test_a_letter_may_point_to_its_data(s3: Any, tmp_path: Path, program: tuple[str, ...]) -> None:
    data = b"\x00large" * 1000
    fields = {
        **json.loads(LETTER.line()),
        "data": None,
        "dataAt": f"s3://{BUCKET}/over/flow",
        "dataBytes": len(data),
    }
    with queue() as (source, client, address):
        client.send_message(QueueUrl=address, MessageBody=json.dumps(fields))
        there = ("--data-at", f"s3://{BUCKET}/over")
        lost = invoke("show", source, LETTER.key, *there)
        assert (lost.exit_code, f"s3://{BUCKET}/over/flow does not exist" in lost.stderr) == (1, True)
        s3.put_object(Bucket=BUCKET, Key="over/flow", Body=data)
        assert invoke("show", source, LETTER.key, "--raw", *there).stdout_bytes == data
        assert invoke("replay", source, "--delete-done", *there, *program).exit_code == 0
        assert (tmp_path / "got").read_text().split()[1] == str(len(data))
        assert listed(source) == []


def pointing(at: str, data_bytes: int) -> bytes:
    fields = {**json.loads(LETTER.line()), "data": None, "dataAt": at, "dataBytes": data_bytes}
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.parametrize(
    "at",
    ["payroll/salaries", "letters-too/over/x", "letters/overt", "letters/over/../secret", "letters/secret"],
)
def test_data_that_the_application_does_not_put_there_are_not_fetched(
    s3: Any, tmp_path: Path, at: str
) -> None:
    bucket, _, key = at.partition("/")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key=key, Body=b"SECRET")
    properties, file = tmp_path / "app.properties", tmp_path / "dead"
    file.write_bytes(pointing(f"s3://{at}", 6))
    properties.write_text(
        "executableName = cat\nstreamName = orders\napplicationName = billing\nregionName = us-east-1\n"
        f"deadLetterDestination = sqs:https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/dead\n"
        f"deadLetterOverflow = s3://{BUCKET}/over\n"
    )
    for words in ((), ("-p", str(properties)), ("--data-at", f"s3://{BUCKET}/over")):
        done = invoke("show", str(file), LETTER.key, *words)
        assert (done.exit_code, "SECRET" in done.output) == (1, False)
        assert f"s3://{at}" in done.stderr
        assert "--data-at" in done.stderr
    s3.delete_object(Bucket=bucket, Key=key)
    if bucket != BUCKET:
        s3.delete_bucket(Bucket=bucket)


def test_the_properties_say_where_data_may_be(s3: Any, tmp_path: Path) -> None:
    properties, file = tmp_path / "app.properties", tmp_path / "dead"
    file.write_bytes(pointing(f"s3://{BUCKET}/over/x", 6))
    s3.put_object(Bucket=BUCKET, Key="over/x", Body=b"poison")
    properties.write_text(
        "executableName = cat\nstreamName = orders\napplicationName = billing\nregionName = us-east-1\n"
        f"deadLetterDestination = kinesis:dead\ndeadLetterOverflow = s3://{BUCKET}/over?folders=day\n"
    )
    assert invoke("show", str(file), LETTER.key, "--raw", "-p", str(properties)).stdout_bytes == b"poison"


@pytest.mark.parametrize(
    ("says", "has", "reason"),
    [(5, 6, "has 6 bytes, the letter says 5"), (33 * 2**20, 33 * 2**20, "more than a record can have")],
)
def test_no_data_are_read_that_have_another_size_than_the_letter_says(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, says: int, has: int, reason: str
) -> None:
    def read(*_: object) -> bytes:
        raise AssertionError("its size is known")

    monkeypatch.setattr(StreamingBody, "read", read)
    s3.put_object(Bucket=BUCKET, Key="x", Body=bytes(has))
    file = tmp_path / "dead"
    file.write_bytes(pointing(f"s3://{BUCKET}/x", says))
    done = invoke("show", str(file), LETTER.key, "--data-at", f"s3://{BUCKET}")
    assert (done.exit_code, reason in done.stderr) == (1, True), done.stderr


def test_a_fifo_queue_gives_back_what_it_was_asked_for() -> None:
    with queue(FifoQueue="true") as (source, client, address):
        for number in range(1, 4):
            client.send_message(
                QueueUrl=address,
                MessageBody=letter(number).line().decode(),
                MessageGroupId="shard",
                MessageDeduplicationId=str(number),
            )
        assert [listed(source) for _ in range(2)] == [["1", "2", "3"]] * 2


@pytest.mark.parametrize("by_arn", [False, True], ids=["by name", "by ARN"])
def test_letters_of_a_stream_come_back(
    by_arn: bool, tmp_path: Path, program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process() as local:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", local.endpoints.kinesis_url)
        local.kinesis.create_stream(StreamName="dead", ShardCount=2)
        summary = local.kinesis.describe_stream_summary(StreamName="dead")["StreamDescriptionSummary"]
        source = f"kinesis:{summary['StreamARN'] if by_arn else 'dead'}"
        for number in (5, 4, 6):
            data = letter(number).line() + b"\n"
            local.kinesis.put_record(StreamName="dead", Data=data, PartitionKey=f"key {number}")
        local.kinesis.put_record(StreamName="dead", Data=b"hello", PartitionKey="x")
        assert listed(source) == ["4", "5", "6"]
        receipts = str(tmp_path / "receipts")
        done = invoke("replay", source, "--receipts", receipts, *program)
        assert (done.exit_code, got(tmp_path)) == (1, ["4", "5", "6"]), "one record is no letter"
        assert "shardId-" in done.stderr
        again = invoke("replay", source, "--receipts", receipts, *program)
        assert "3 letters done before" in again.stdout
        assert got(tmp_path) == ["4", "5", "6"]


def test_a_large_letter_in_a_file_is_read_alone(tmp_path: Path, program: tuple[str, ...]) -> None:
    big = b64encode(b"\xff" * 10 * 1024**2).decode()
    both = [replace(letter(number), record=replace(letter(number).record, data=big)) for number in (2, 1)]
    file = tmp_path / "dead"
    file.write_bytes(b"".join(each.line() + b"\n" for each in both))
    assert invoke("replay", str(file), *program).exit_code == 0
    assert [line.split()[:2] for line in (tmp_path / "got").read_text().splitlines()] == [
        ["1", "10485760"], ["2", "10485760"]
    ]  # fmt: skip
