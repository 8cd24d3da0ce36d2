"""The contract of a landing's store, and a whole shard's log, on S3 servers that others have written."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from kcl_landing.log import LogInfo
from kcl_landing.manifests import ShardLog, open_log
from kcl_landing.store import LogStore, StoreTrouble, open_store, probe
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.landing import test_store_contract as contract
from tests.landing.backends import new_s3, s3_client
from tests.landing.footers import SHARD, STREAM, land, made, read_footer
from tests.peers.conftest import free_port
from tests.peers.servers import KEY, MINIO, VERSITY, Server, running

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
CONTRACT = [getattr(contract, name) for name in dir(contract) if name.startswith("test_")]


@pytest.fixture(autouse=True, scope="module")
def _credentials() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    with credentials_that_nobody_checks(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        yield


@pytest.fixture(scope="module", params=[MINIO, VERSITY], ids=lambda server: server.name)
def server(request: pytest.FixtureRequest) -> Server:
    chosen = request.param
    assert isinstance(chosen, Server)
    return chosen


@pytest.fixture(scope="module")
def url(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with running(server, tmp_path_factory.mktemp(server.name)) as at:
        yield at


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_contract(url: str, promise: contract.Promise) -> None:
    promise(new_s3(url))


def test_many_probes(url: str) -> None:
    store = new_s3(url)
    for _ in range(20):
        probe(store)


def test_a_segment_of_the_largest_size(url: str) -> None:
    store: LogStore = new_s3(url)
    content = bytes(range(256)) * (64 * 2**12)
    assert store.create("a", memoryview(content))
    assert not store.create("a", content)
    assert store.read("a") == content


def test_a_server_that_is_killed_and_comes_back(server: Server, tmp_path: Path) -> None:
    """What was created before is there afterwards, and its number is taken."""
    port = free_port()
    with running(server, tmp_path, port) as url:
        s3_client(url).create_bucket(Bucket="landing")
        store = open_store("s3://landing/log", endpoint=url, region=REGION)
        info = open_log(store, LogInfo("app", "log", "parquet", "id-1"))
        log = ShardLog(store, info, STREAM, SHARD, read_footer)
        log.open(is_new=True)
        for number in range(5):
            log.append(land(store, info, made(number)), behind_ms=0, at_ms=number)
    with pytest.raises(StoreTrouble) as raised:
        store.create("x", b"")
    assert raised.value.cause == "unreachable"
    with running(server, tmp_path, port):
        assert ShardLog(store, info, STREAM, SHARD, read_footer).open().number == 4
        path = f"{STREAM}/{SHARD}/000000000004.parquet"
        assert not store.create(path, b"another writer")
        assert store.create(path.replace("04.", "05."), b"")
