"""The promises of DynamoDB Streams, asked of DynamoDB Local."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.contract.streams_promises import PROMISES, Promise, Streams, connected, held_to
from tests.peers.conftest import UP_WITHIN_S, answers, free_port
from tests.process.daemon import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
PROGRAM: Final = "PEER_DYNAMODB_LOCAL"
DIFFERENCES: Final = {
    "an_open_shard_has_no_children": "ShardFilter has no effect",
    "a_change_has_its_region": "the region is ddblocal",
    "a_time_is_a_position_too": "AT_TIMESTAMP is not known",
    "a_number_outside_the_shard_is_refused": "status 500 for some, others are taken",
    "a_page_has_no_more_than_a_mebibyte": "pages have no limit in bytes",
}


@contextmanager
def dynamodb_local(folder: Path, scratch: Path) -> Generator[str]:
    """DynamoDB Local from the folder of its jars, in memory, while the block runs; and where it answers."""
    port = free_port()
    options = ["-Djava.library.path=" + str(folder), "-Xmx512m", "-DDDB_LOCAL_TELEMETRY=0"]
    main = ["com.amazonaws.services.dynamodbv2.local.main.ServerRunner", "-inMemory", "-disableTelemetry"]
    command = ["java", *options, "-cp", f"{folder}/*", *main, "-port", str(port)]
    with (
        (scratch / "log").open("wb") as log,
        subprocess.Popen(command, cwd=scratch, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(
                lambda: answers(port) or process.poll() is not None, "DynamoDB Local is up", UP_WITHIN_S
            )
            assert process.poll() is None, (scratch / "log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Streams]:
    folder = Path(os.environ[PROGRAM])
    with dynamodb_local(folder, tmp_path_factory.mktemp("dynamodb-local")) as url:
        yield connected("DynamoDB Local", url, url, DIFFERENCES)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(server: Streams, promise: Promise) -> None:
    held_to(server, promise)
