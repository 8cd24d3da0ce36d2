"""Whole daemons that land the records of a stream in a folder: what is there afterwards, and what happens on the way."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import boto3
import psutil
import pytest
from moto.server import ThreadedMotoServer

from kcl_landing import segments
from kcl_landing.log import Footer, place
from kcl_landing.positions import Position
from tests.process.commands import run_command
from tests.process.daemon import (
    Application,
    Daemon,
    again_and_again,
    application,
    run_daemon,
    value_of,
    wait_until,
)
from tests.process.local import Local
from tests.process.test_lag_process import port_of
from tests.process.test_many_streams import create
from tests.process.test_reshard_process import RESHARD, open_shards, wait_active

pytestmark = pytest.mark.timeout(300)

SETTINGS: Final[Mapping[str, object]] = {
    **RESHARD,
    "retrievalMode": "POLLING",
    "landing": "landing",
    "landingWindowMillis": 300,
    "adminPort": 0,
}


@dataclass
class Stream:
    """What was put, by shard, and what a folder has of it."""

    app: Application
    put: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    @property
    def folder(self) -> Path:
        return self.app.directory / "landing"

    def write(self, count: int, size_bytes: int = 1) -> None:
        for shard in open_shards(self.app):
            entries = [
                {
                    "Data": f"{number}".ljust(size_bytes).encode(),
                    "PartitionKey": "k",
                    "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"],
                }
                for number in range(count)
            ]
            answer = self.app.kinesis.put_records(StreamName=self.app.name, Records=entries)  # type: ignore[arg-type]
            for each in answer["Records"]:
                assert "ShardId" in each and "SequenceNumber" in each, each
                self.put.append((each["ShardId"], int(each["SequenceNumber"])))

    def footers(self, shard_id: str) -> list[Footer]:
        """Of all segments of a shard, which must follow each other."""
        paths = sorted((self.folder / self.app.name / shard_id).glob("*.parquet"))
        found = [segments.read_footer(path.read_bytes(), "parquet") for path in paths]
        assert [each.number for each in found] == list(range(len(found)))
        assert all(one.last == after.after for one, after in pairwise(found))
        return found

    def durable(self, shard_id: str) -> Position:
        return max((place(each.last) for each in self.footers(shard_id)), default=(-1, 0))

    def landed(self) -> Counter[tuple[str, int]]:
        found = Counter[tuple[str, int]]()
        for path in sorted((self.folder / self.app.name).glob("*/*.parquet")):
            table = segments.decode(path.read_bytes(), "parquet")
            numbers = [int(each) for each in table.column("sequence_number").to_pylist()]
            assert numbers == sorted(numbers)
            found.update((path.parent.name, number) for number in numbers)
        return found

    def wait_landed(self) -> None:
        wait_until(
            lambda: self.landed().keys() >= set(self.put),
            lambda: f"{len(set(self.put) - self.landed().keys())} of {len(self.put)} records are not there",
        )

    def assert_once(self) -> None:
        assert self.landed() == Counter(self.put)

    def assert_no_checkpoint_is_ahead(self) -> None:
        for shard_id, row in self.app.rows().items():
            stored = row.get("checkpoint", {}).get("S", "")
            if stored.isdecimal():
                assert self.durable(shard_id)[0] >= int(stored), shard_id


def reshard(stream: Stream) -> None:
    """Split the first shard, then merge the second half with its neighbour, with records before and after each."""
    app = stream.app
    stream.write(20)
    shard = open_shards(app)[0]
    low, high = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
    app.kinesis.split_shard(
        StreamName=app.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
    )
    wait_active(app)
    stream.write(20)
    left, right = open_shards(app)[1:3]
    app.kinesis.merge_shards(
        StreamName=app.name, ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"]
    )
    wait_active(app)
    stream.write(20)


def assert_ends_are_marked(stream: Stream) -> None:
    """The last segment of each shard that has ended names its children."""
    shards = stream.app.shards()
    for shard in shards:
        parent = shard["ShardId"]
        children = {
            each["ShardId"]
            for each in shards
            if parent in {each.get("ParentShardId"), each.get("AdjacentParentShardId")}
        }
        last = stream.footers(parent)[-1]
        assert (last.children is not None) == bool(children), parent
        assert set(last.children or ()) == children


def all_ended(stream: Stream) -> bool:
    shards = [
        each["ShardId"]
        for each in stream.app.shards()
        if "EndingSequenceNumber" in each["SequenceNumberRange"]
    ]
    return all((found := stream.footers(each)) and found[-1].children is not None for each in shards)


def lander_pid(daemon: Daemon) -> int:
    return int(daemon.named("lander_started")[-1]["lander_pid"])


def status(daemon: Daemon) -> dict[str, Any]:
    with urlopen(f"http://127.0.0.1:{port_of(daemon)}/status.json", timeout=10) as answer:
        reported: dict[str, Any] = json.load(answer)
    return reported


def test_two_daemons_land_each_record_once_through_reshards_and_kills(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "landing", shards=3) as app,
        app.daemon("", SETTINGS, worker="alpha") as alpha,
        app.daemon("", SETTINGS, worker="beta") as beta,
    ):
        stream = Stream(app)
        wait_until(
            lambda: len(app.owners()) == 3 and None not in app.owners().values(), "all shards are read"
        )
        beta.wait_for("lander_ready")
        with again_and_again(stream.assert_no_checkpoint_is_ahead, 0.1):
            reshard(stream)
            psutil.Process(lander_pid(beta)).kill()
            stream.write(20)
            beta.wait_for("lander_ended", code=-signal.SIGKILL)
            alpha.signal(signal.SIGKILL)
            assert alpha.end() == -signal.SIGKILL
            stream.write(20)
            reshard(stream)
            stream.wait_landed()
            wait_until(lambda: all_ended(stream), "all ends are marked")
            beta.stop()
        stream.assert_once()
        stream.assert_no_checkpoint_is_ahead()
        assert_ends_are_marked(stream)


def test_a_clean_stop_writes_what_waits_and_the_next_daemon_goes_on_behind_it(
    local: Local, tmp_path: Path
) -> None:
    slow = {**SETTINGS, "landingWindowMillis": 600_000}
    with application(local, tmp_path, "landing-stop", shards=2) as app:
        stream = Stream(app)
        stream.write(30)
        with app.daemon("", slow) as daemon:
            daemon.wait_for("lander_ready")

            def waiting() -> int:
                landing = status(daemon)["snapshot"]["landing"]
                return sum(each["waiting_rows"] for each in landing["shards"]) if landing else 0

            wait_until(lambda: waiting() == 60, "the lander has the records")
            assert not stream.landed()
            daemon.stop()
        stream.assert_once()
        for shard_id, row in app.rows().items():
            assert int(value_of(row, "checkpoint")) == stream.durable(shard_id)[0]
        with app.daemon("", SETTINGS) as daemon:
            stream.write(10)
            stream.wait_landed()
            daemon.stop()
        stream.assert_once()


def test_a_full_store_is_named_and_filled_on_once_there_is_room(local: Local, tmp_path: Path) -> None:
    little = {**SETTINGS, "landingMemoryBytes": 2**20, "landingMaxBytes": 2**20}
    with application(local, tmp_path, "landing-full", shards=1) as app, app.daemon("", little) as daemon:
        stream = Stream(app)
        daemon.wait_for("lander_ready")
        stream.write(5)
        stream.wait_landed()
        lander = psutil.Process(lander_pid(daemon))
        none, most = lander.rlimit(psutil.RLIMIT_FSIZE)
        lander.rlimit(psutil.RLIMIT_FSIZE, (0, most))
        before = stream.durable("shardId-000000000000")
        for _ in range(4):
            stream.write(1, 700_000)
        assert daemon.wait_for("landing_store_waits")["cause"] == "full"

        def cause() -> str:
            (shard,) = status(daemon)["snapshot"]["shards"]
            return str(shard["cause"])

        wait_until(lambda: cause() == "landing store", "the shard names the store")

        def trouble() -> dict[str, Any] | None:
            landing = status(daemon)["snapshot"]["landing"]
            found: dict[str, Any] | None = landing and landing["trouble"]
            return found

        wait_until(lambda: trouble() is not None, "the status names the trouble")
        found = trouble()
        assert found is not None
        assert found["cause"] == "full"
        assert stream.durable("shardId-000000000000") == before
        stream.assert_no_checkpoint_is_ahead()
        lander.rlimit(psutil.RLIMIT_FSIZE, (none, most))
        daemon.wait_for("landing_store_works_again")
        stream.wait_landed()
        daemon.stop()
        stream.assert_once()


def test_a_job_lands_all_up_to_the_tip_and_ends(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "landing-job", shards=2) as app:
        stream = Stream(app)
        stream.write(50)
        with app.daemon("", {**SETTINGS, "runUntil": "tip", "landingLayout": "log"}) as daemon:
            assert daemon.end() == 0, daemon.tail()
        stream.assert_once()


def test_with_a_filter_only_its_records_land_also_after_a_restart(local: Local, tmp_path: Path) -> None:
    settings = {**SETTINGS, "runUntil": "tip", "recordFilter": '{"partitionKey": ["k"]}'}
    with application(local, tmp_path, "landing-filter", shards=1) as app:
        stream = Stream(app)
        for _ in range(2):
            stream.write(5)
            for _ in range(5):
                app.kinesis.put_record(StreamName=app.name, Data=b"not wanted", PartitionKey="other")
            with app.daemon("", settings) as daemon:
                assert daemon.end() == 0, daemon.tail()
            assert daemon.named("landing_shard_refused") == []
            stream.assert_once()
            stream.assert_no_checkpoint_is_ahead()


def test_streams_of_one_daemon_have_folders_of_their_own(local: Local, tmp_path: Path) -> None:
    names = ("landing-left", "landing-right")
    many = {**SETTINGS, "streamName": "", "streamNames": ", ".join(names)}
    with application(local, tmp_path, "landing-many", shards=0) as app:
        for name in names:
            create(app, name, 1)
            for number in range(7):
                app.kinesis.put_record(StreamName=name, Data=f"{name} {number}".encode(), PartitionKey="k")
        with app.daemon("", many) as daemon:

            def landed(name: str) -> list[str]:
                paths = sorted((tmp_path / "landing" / name).glob("*/*.parquet"))
                tables = [segments.decode(path.read_bytes(), "parquet") for path in paths]
                return [data.decode() for table in tables for data in table.column("data").to_pylist()]

            for name in names:
                wait_until(lambda name=name: len(landed(name)) == 7, f"{name} is there")  # type: ignore[misc]
                assert landed(name) == [f"{name} {number}" for number in range(7)]
            daemon.stop()


def test_records_land_in_a_bucket_and_a_check_says_whose_log_is_there(local: Local, tmp_path: Path) -> None:
    access = {"region_name": "us-east-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}
    bucket = {**SETTINGS, "landing": "s3://landing-bucket/a/b", "landingEndpoint": local.s3_url}
    with (
        application(local, tmp_path, "landing-s3", shards=1) as app,
        closing(boto3.client("s3", endpoint_url=local.s3_url, **access)) as s3,  # type: ignore[call-overload]
    ):
        s3.create_bucket(Bucket="landing-bucket")
        stream = Stream(app)
        stream.write(30)

        def checked() -> str:
            words = ("check", app.write_properties("worker", "", bucket), "--with-aws")
            return run_command(*words, directory=tmp_path, environment=local.environment).stdout

        assert "landing s3://landing-bucket/a/b: no log yet; the daemon creates it" in checked()
        with app.daemon("", {**bucket, "runUntil": "tip"}) as daemon:
            assert daemon.end() == 0, daemon.tail()
        assert "landing s3://landing-bucket/a/b: the log is there (landing-s3, log, parquet)" in checked()
        found = list[int]()
        for each in s3.list_objects_v2(Bucket="landing-bucket", Prefix="a/b/landing-s3/")["Contents"]:
            content = s3.get_object(Bucket="landing-bucket", Key=each["Key"])["Body"].read()
            found += map(int, segments.decode(content, "parquet").column("sequence_number").to_pylist())
        assert found == [number for _, number in stream.put]


def test_a_bucket_that_demands_encryption_gets_it_with_each_object(local: Local, tmp_path: Path) -> None:
    access = {"region_name": "us-east-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    url = "http://{}:{}".format(*moto.get_host_and_port())
    try:
        with (
            application(local, tmp_path, "landing-kms", shards=1) as app,
            closing(boto3.client("s3", endpoint_url=url, **access)) as s3,  # type: ignore[call-overload]
        ):
            s3.create_bucket(Bucket="encrypted")
            Stream(app).write(30)
            where = {"landing": "s3://encrypted/log", "landingEndpoint": url, "landingEncryption": "aws:kms"}
            with app.daemon("", {**SETTINGS, **where, "runUntil": "tip"}) as daemon:
                assert daemon.end() == 0, daemon.tail()
            keys = [each["Key"] for each in s3.list_objects_v2(Bucket="encrypted")["Contents"]]
            found = {key: s3.head_object(Bucket="encrypted", Key=key)["ServerSideEncryption"] for key in keys}
    finally:
        moto.stop()
    assert found == dict.fromkeys(keys, "aws:kms")
    assert {"log/_kcl_landing.json", "log/landing-kms/shardId-000000000000/000000000000.parquet"} <= set(keys)


def test_a_landing_of_another_application_is_refused_with_words(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "landing-theirs", shards=1) as app:
        with app.daemon("", SETTINGS) as daemon:
            daemon.wait_for("lander_ready")
            daemon.stop()
        file = app.write_properties("other", "", {**SETTINGS, "applicationName": "landing-ours"})
        with run_daemon(tmp_path, "--properties", file, environment=local.environment) as daemon:
            assert daemon.end() == 2
            said = "\n".join([*daemon.plain_lines, *map(str, daemon.loud())])
        assert "applicationName = landing-theirs, and the properties say landing-ours" in said
        assert "landing" in said
