"""`python -m tests.benchmarks.watching`: what it costs a daemon to be watched, with 256 shards.

Two daemons run side by side, each on a stream of its own: one tells nobody anything, the other has CloudWatch metrics, a
scraper of `/metrics`, two probes and a person who looks at the page. Their CPU is compared turn by turn, so that what else the
machine does meets both. Children and endpoints do not count.
"""

from __future__ import annotations

import argparse
import re
import sys
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Final

import psutil

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import Application, Daemon, again_and_again, application, wait_until
from tests.process.local import local_process

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

START_S: Final = 300.0
SCRAPE_S, PROBE_S = 15.0, 10.0
# A child that costs next to nothing: it answers, and never looks into a record.
CHILD: Final = """while read -r line; do
  action=${line#*'"action":"'}
  printf '{"action":"status","responseFor":"%s"}\\n' "${action%%'"'*}"
done
"""
UNWATCHED: Final[dict[str, object]] = {"metricsLevel": "NONE"}
WATCHED: Final[dict[str, object]] = {"metricsLevel": "DETAILED", "adminPort": 0}


def get(url: str) -> str:
    """What an address answers."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def poll(url: str) -> None:
    """As the page's script does: it asks again when the answer says."""
    (every_s,) = re.findall(r'data-every="([\d.]+)"', get(url + "/live"))
    Event().wait(float(every_s))


@contextmanager
def looked_at(url: str) -> Generator[None]:
    """A scraper, two probes, and a person who looks at the page."""
    get(url + "/")
    with (
        again_and_again(lambda: get(url + "/metrics"), SCRAPE_S),
        again_and_again(lambda: get(url + "/livez"), PROBE_S),
        again_and_again(lambda: get(url + "/readyz"), PROBE_S),
        again_and_again(lambda: poll(url), 0.0),
    ):
        yield


@contextmanager
def fed(apps: list[Application], shards: int) -> Generator[None]:
    """One record a second for each shard."""
    records: list[PutRecordsRequestEntryTypeDef] = [
        {"Data": b"x" * 200, "PartitionKey": "key", "ExplicitHashKey": str(place * 2**128 // shards)}
        for place in range(shards)
    ]

    def feed() -> None:
        for app in apps:
            app.kinesis.put_records(StreamName=app.name, Records=records)

    with again_and_again(feed, 1.0):
        yield


def percents(daemons: tuple[Daemon, Daemon], seconds: float, turns: int) -> list[tuple[float, float]]:
    """CPU of both in percent of a core, turn by turn."""
    processes = [psutil.Process(each.process.pid) for each in daemons]
    pause, rows = Event(), list[tuple[float, float]]()
    for _ in range(turns):
        before, began_s = [cpu_s(each) for each in processes], monotonic_s()
        pause.wait(seconds)
        wall_s = monotonic_s() - began_s
        first, second = (
            100 * (cpu_s(each) - was) / wall_s for each, was in zip(processes, before, strict=True)
        )
        rows.append((first, second))
    return rows


def cpu_s(process: psutil.Process) -> float:
    """Seconds of the process itself."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(shards: int, seconds: float, turns: int, *, with_records: bool) -> str:
    """One row."""
    with ExitStack() as stack:
        local = stack.enter_context(local_process())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        (folder / "child.sh").write_text(CHILD)
        child = f"sh {folder / 'child.sh'}"
        apps = list[Application]()
        daemons = list[Daemon]()
        for name, more in (("unwatched", UNWATCHED), ("watched", WATCHED)):
            (folder / name).mkdir()
            app = stack.enter_context(application(local, folder / name, name, shards=shards))
            apps.append(app)
            daemons.append(stack.enter_context(app.daemon(child, more, worker=name, fresh=True)))
        for daemon in daemons:
            wait_until(lambda of=daemon: len(of.named("child_started")) >= shards, "all children", START_S)  # type: ignore[misc]
        unwatched, watched = daemons
        stack.enter_context(looked_at(watched.wait_for("status_page_served")["url"].rstrip("/")))
        if with_records:
            stack.enter_context(fed(apps, shards))
        Event().wait(15.0)
        rows = percents((unwatched, watched), seconds, turns)
    costs = [second - first for first, second in rows]
    reported = ", ".join(f"{each:.2f}" for each in costs)
    return (
        f"| {shards} | {'1 a second and shard' if with_records else 'none'} | {median(first for first, _ in rows):.2f} "
        f"| {median(second for _, second in rows):.2f} | {median(costs):.2f} ({reported}) |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what being watched costs a daemon.")
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=30.0, help="each turn (30)")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    sys.stdout.write(
        "| shards | records | CPU %, unwatched | CPU %, watched | difference, median (each turn) |\n"
    )
    sys.stdout.write("|---|---|---|---|---|\n")
    for with_records in (False, True):
        row = measure(given.shards, given.seconds, given.turns, with_records=with_records)
        sys.stdout.write(row + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
