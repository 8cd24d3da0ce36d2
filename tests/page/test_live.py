"""The page of a fleet at work, while shards are split, a child is killed and leases are handed over; seen by a browser."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser

from kcl_daemon.cli.status import status
from tests.page.looking import Looked, looking
from tests.process.daemon import (
    FAILOVER_MS,
    Application,
    Daemon,
    again_and_again,
    application,
    wait_until,
)
from tests.process.local import Local

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

pytestmark = pytest.mark.timeout(300)

TALKING: Final = f"{sys.executable} -m tests.page.talking"
MORE: Final = {
    "adminPort": 0,
    "failoverTimeMillis": FAILOVER_MS,
    "childRestartBackoffMillis": 100,
    "idleTimeBetweenReadsInMillis": 200,
    "workerMetricsReporterFreqInMillis": 500,
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
}
WITHIN_S: Final = 90.0
# A dozen places all over the stream.
RECORDS: Final[list[PutRecordsRequestEntryTypeDef]] = [
    {"Data": b"x" * 500, "PartitionKey": "key", "ExplicitHashKey": str(place * 2**128 // 12)}
    for place in range(12)
]
SPLIT: Final = "shardId-000000000000"
KILLED: Final = "shardId-000000000001"


def url_of(daemon: Daemon) -> str:
    """Where its page is."""
    url: str = daemon.wait_for("status_page_served")["url"]
    return url


def eventually(checked: Looked, holds: Callable[[], bool], what: str) -> None:
    """Wait until the page shows something; it is never loaded again."""

    def text() -> str:
        return f"{what}\n{checked.text('#live')}"

    def shown() -> bool:
        checked.page.wait_for_timeout(100)  # the browser goes on only while it is asked something
        return holds()

    wait_until(shown, text, WITHIN_S)


@pytest.fixture(scope="module")
def app(local: Local, tmp_path_factory: pytest.TempPathFactory) -> Generator[Application]:
    with application(local, tmp_path_factory.mktemp("live"), "status-page", shards=3) as made:
        yield made


def feeding(app: Application) -> AbstractContextManager[None]:
    """Records for all shards, five times a second, while the block lasts."""
    return again_and_again(lambda: app.kinesis.put_records(StreamName=app.name, Records=RECORDS), every_s=0.2)


def test_a_reshard_a_killed_child_and_a_hand_off_are_seen_as_they_happen(
    app: Application, browser: Browser
) -> None:
    with (
        feeding(app),
        app.daemon(TALKING, MORE, worker="worker-1") as first,
        looking(browser, url_of(first)) as checked,
    ):
        shows_work(checked)
        shows_a_killed_child(checked)
        shows_a_reshard(app, checked)
        checked.screenshot("reshard")
        shows_the_same_in_a_terminal(url_of(first))
        with app.daemon(TALKING, MORE, worker="worker-2") as second:
            second.wait_for("worker_started")  # else its own log tells why not
            shows_a_hand_off(checked)
            checked.screenshot("fleet")
            shows_a_follower(browser, second)
        checked.assert_quiet()
        first.signal(signal.SIGKILL)
        first.end()
        eventually(checked, lambda: "No answer" in checked.text("#connection"), "that nobody answers")


def shows_work(checked: Looked) -> None:
    """Three shards are read; throughput is drawn; what a child says on stderr is text."""
    page = checked.page
    eventually(checked, lambda: len(checked.rows("children")) == 3, "three children")
    assert page.title() == "status-page: worker-1"
    eventually(checked, lambda: page.locator("#shards svg.spark").count() == 3, "three sparklines")
    eventually(
        checked, lambda: "is the leader and holds 3 shards" in checked.text("#summary"), "that it holds them"
    )
    lines = f'#children tr[data-key="{KILLED}"] pre'
    summary = page.locator(f'#children tr[data-key="{KILLED}"] summary')
    summary.click()
    eventually(checked, lambda: "a batch of" in checked.text(lines), "lines of stderr")
    # It stays open, and has the focus still, when the page has renewed itself.
    summary.focus()
    before = checked.text(lines)
    eventually(checked, lambda: checked.text(lines) not in {"", before}, "new lines of stderr")
    assert page.locator(f'#children tr[data-key="{KILLED}"] details[open]').count() == 1
    assert page.evaluate("document.activeElement.nodeName") == "SUMMARY"


def shows_a_killed_child(checked: Looked) -> None:
    """It has a successor, with another process id."""
    pid = int(checked.rows("children")[KILLED][1])
    os.kill(pid, signal.SIGKILL)

    def succeeded() -> bool:
        cells = checked.rows("children").get(KILLED, [])
        return len(cells) > 4 and cells[4] not in {"", "0"} and cells[1] != str(pid)

    eventually(checked, succeeded, "the successor of the child")


def shows_a_reshard(app: Application, checked: Looked) -> None:
    """Two shards stand below the one that they came out of."""
    app.kinesis.split_shard(StreamName=app.name, ShardToSplit=SPLIT, NewStartingHashKey=str(2**128 // 6))
    wait_until(app._is_active, "the stream is ACTIVE again")
    names = [shard["ShardId"] for shard in app.shards() if shard.get("ParentShardId") == SPLIT]
    assert len(names) == 2
    eventually(checked, lambda: set(names) <= set(checked.rows("children")), "children of the new shards")
    # What is finished stays until its child shards are read, and is cleared away then.
    eventually(checked, lambda: is_drawn(checked.rows("shards"), names), "the lineage")


def is_drawn(rows: dict[str, list[str]], names: list[str]) -> bool:
    """Whether these shards stand below the one that was split, and that is finished; or it is not there any more."""
    if SPLIT not in rows:
        return set(names) <= set(rows)
    place = list(rows).index(SPLIT)
    if list(rows)[place + 1 : place + 3] != names:
        return False
    first, second = (rows[name][0] for name in names)
    return rows[SPLIT][1] == "finished" and first.startswith("├─") and second.startswith("└─")


def shows_the_same_in_a_terminal(url: str) -> None:
    """The document of a daemon at work is what the command reads."""
    done = CliRunner().invoke(status, ["--url", url])
    assert done.exit_code == 0, done.output
    assert "running, worst lag " in done.output
    assert KILLED in done.output


def shows_a_hand_off(checked: Looked) -> None:
    """Another worker appears, gets leases, and the page says why."""
    eventually(checked, lambda: list(checked.rows("fleet")) == ["worker-1", "worker-2"], "two workers")

    def moved() -> bool:
        return any(cells[-1].endswith("worker-2") for cells in checked.rows("shards").values())

    eventually(checked, moved, "a lease of the other worker")
    eventually(checked, lambda: "worker-2" in checked.text("#moves"), "the reason of a move")
    eventually(checked, lambda: checked.rows("fleet")["worker-1"][1] == "leader, this worker", "who leads")


def shows_a_follower(browser: Browser, daemon: Daemon) -> None:
    """A worker that does not lead reads the tables for who looks at its page."""
    with looking(browser, url_of(daemon), scheme="dark", width=420) as checked:
        eventually(checked, lambda: list(checked.rows("fleet")) == ["worker-1", "worker-2"], "the fleet")
        eventually(checked, lambda: "worker-1" in checked.text("#fleet dl"), "who leads")
        checked.screenshot("follower-narrow")
        checked.assert_quiet()
