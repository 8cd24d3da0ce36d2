"""S3 with errors, lost answers, and a server that goes away."""

from __future__ import annotations

from collections.abc import Generator

import boto3
import pytest
from moto import mock_aws

from kcl_landing.s3_store import S3Store
from kcl_landing.store import Cause, NoObject, NotConditional, StoreTrouble, open_store, probe
from kcl_local.dynamodb import DynamoDbServer
from kcl_local.faults import DROP, Fault
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.landing.backends import new_s3, s3_client


@pytest.fixture(scope="module")
def server() -> Generator[DynamoDbServer]:
    with DynamoDbServer() as running, credentials_that_nobody_checks():
        yield running


@pytest.fixture
def store(server: DynamoDbServer, monkeypatch: pytest.MonkeyPatch) -> Generator[S3Store]:
    made = new_s3(server.s3_url)
    assert isinstance(made, S3Store)
    monkeypatch.setattr("botocore.endpoint.time.sleep", float)
    yield made
    server.letters.clear_faults()


def fail(server: DynamoDbServer, operation: str, code: str, times: int = 1, *, after: bool = False) -> None:
    server.letters.faults.add(operation, Fault(code, after), times)


def test_a_segment_of_the_largest_size(store: S3Store) -> None:
    content = bytes(64 * 2**20)
    assert store.create("a", memoryview(content))
    assert store.read("a") == content


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("SlowDown", "slow down"),
        ("AccessDenied", "denied"),
        ("InternalServerError", "failed"),
        (DROP, "unreachable"),
    ],
)
def test_causes(server: DynamoDbServer, store: S3Store, code: str, cause: Cause) -> None:
    fail(server, "PutObject", code, 3)
    with pytest.raises(StoreTrouble, match=r"some/prefix/a") as raised:
        store.create("a", b"x")
    assert raised.value.cause == cause


def test_trouble_that_passes_is_not_seen(server: DynamoDbServer, store: S3Store) -> None:
    fail(server, "PutObject", "SlowDown", 2)
    assert store.create("a", b"x")
    fail(server, "GetObject", DROP, 2)
    assert store.read("a") == b"x"


@pytest.mark.parametrize("code", ["InternalServerError", DROP])
def test_of_a_lost_answer_the_caller_reads_whose_it_is(
    server: DynamoDbServer, store: S3Store, code: str
) -> None:
    fail(server, "PutObject", code, after=True)
    assert not store.create("a", b"ours")
    assert store.read("a") == b"ours"


def test_all_answers_lost(server: DynamoDbServer, store: S3Store) -> None:
    fail(server, "PutObject", DROP, 3, after=True)
    with pytest.raises(StoreTrouble):
        store.create("a", b"ours")
    assert store.read("a") == b"ours"


def test_a_conflict_is_tried_again(server: DynamoDbServer, store: S3Store) -> None:
    fail(server, "PutObject", "ConditionalRequestConflict", 2)
    assert store.create("a", b"x")
    fail(server, "PutObject", "ConditionalRequestConflict", 5)
    with pytest.raises(StoreTrouble) as raised:
        store.create("b", b"x")
    assert raised.value.cause == "slow down"


def test_a_server_without_conditions_is_refused(server: DynamoDbServer, store: S3Store) -> None:
    fail(server, "PutObject", "NotImplemented")
    with pytest.raises(NotConditional, match="If-None-Match"):
        probe(store)


def test_a_bucket_that_is_not_there(server: DynamoDbServer) -> None:
    store = open_store("s3://nowhere/log", endpoint=server.s3_url, region=REGION)
    with pytest.raises(StoreTrouble, match="NoSuchBucket") as raised:
        store.read("a")
    assert raised.value.cause == "failed"


def test_without_a_prefix(server: DynamoDbServer) -> None:
    s3_client(server.s3_url).create_bucket(Bucket="no-prefix")
    store = open_store("s3://no-prefix", endpoint=server.s3_url, region=REGION)
    store.create("a/b", b"")
    assert [each.path for each in store.listing("")] == [each.path for each in store.listing("a")] == ["a/b"]


def test_nobody_listens(store: S3Store) -> None:
    store.create("a", b"x")
    away = open_store("s3://bucket/log", endpoint="http://127.0.0.1:1", region=REGION)
    with pytest.raises(StoreTrouble) as raised:
        away.create("a", b"")
    assert raised.value.cause == "unreachable"


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, server: DynamoDbServer) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_store("s3://bucket/log", endpoint=server.s3_url, region=REGION)
    with pytest.raises(StoreTrouble) as raised:
        store.read("a")
    assert raised.value.cause == "denied"


KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize(
    ("encryption", "algorithm", "key"),
    [(None, None, None), ("AES256", "AES256", None), ("aws:kms", "aws:kms", None), (KEY, "aws:kms", KEY)],
)
def test_each_object_is_encrypted_as_asked(
    encryption: str | None, algorithm: str | None, key: str | None
) -> None:
    with mock_aws(), credentials_that_nobody_checks():
        s3 = boto3.session.Session().client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="records")
        asked = list[dict[str, str]]()
        store = open_store("s3://records/log", encryption=encryption)
        assert isinstance(store, S3Store)
        store._s3.meta.events.register(
            "before-call.s3.PutObject", lambda params, **_: asked.append(params["headers"])
        )
        store.create("a", b"x")
        store.replace("b", b"y")
        for name in ("a", "b"):
            found = s3.head_object(Bucket="records", Key=f"log/{name}")
            assert (found.get("ServerSideEncryption"), found.get("SSEKMSKeyId")) == (algorithm, key), name
    header = "x-amz-server-side-encryption"
    assert [(each.get(header), each.get(f"{header}-aws-kms-key-id")) for each in asked] == [
        (algorithm, key)
    ] * 2


def test_missing(store: S3Store) -> None:
    with pytest.raises(NoObject, match="some/prefix/a"):
        store.read("a")
