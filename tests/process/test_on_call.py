"""A real Prometheus with the shipped rules beside real daemons and their watchers: the sick are paged for, the healthy are quiet.

`tests/sick` plays every sickness in virtual time. Here are some of them as they are in life, four applications side by side,
and what the dashboard asks.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import (
    PROCESSORS,
    Application,
    Daemon,
    again_and_again,
    application,
    run_daemon,
    wait_until,
)
from tests.process.local import Local
from tests.process.processors.misbehaving import HEALED
from tests.process.prometheus import Prometheus, prometheus

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1500)]

CAREFUL: Final = f"{PROCESSORS}.careful"
FAILING: Final = f"{PROCESSORS}.misbehaving half_line_and_exit"
# By number: all daemons of a test share one processor, and its load says nothing about any of them.
SETTINGS: Final = {"adminPort": 0, "leaseAssignmentStrategy": "LEASE_COUNT_BASED"}
SHARDS: Final = {"well": 8, "dead": 2, "failing": 2, "full": 2}
SICK: Final = ("dead", "failing", "full")
# The last of what a worker tells about itself, by its leader.
CAPACITY: Final = 'max(kcl_capacity_speed{job="%s"})'
SETTLED_WITHIN_S: Final = 420.0
PUT_EVERY_S: Final = 2.0
PAGED_WITHIN_S: Final = 300.0
STAYS_S: Final = 90.0
ENDS_WITHIN_S: Final = 120.0
# Of records that came late: its short window has them for five minutes more.
AFTERWARDS: Final = frozenset({"KclServiceLevelBurnsFast"})
LINES_A_MINUTE_MOST: Final = 2.0
DASHBOARD: Final = Path(__file__).parents[2] / "packaging" / "grafana" / "dashboard.json"
# There are none while all is well, or where no Spark query runs.
OF_TROUBLE: Final = re.compile(
    r"kcl_spark_|outcome!=|kcl_records_(left_out|set_aside)_total|kcl_log_events_total"
)


@dataclass(eq=False)
class Watched:
    """An application with its workers and its watcher.

    Attributes:
        watcher: where it answers.
    """

    app: Application
    stack: ExitStack
    workers: list[Daemon] = field(default_factory=list[Daemon])
    watcher: str = ""

    def start(self, name: str, executable: str = CAREFUL, **more: object) -> None:
        """One more worker."""
        daemon = self.app.daemon(executable, {**SETTINGS, **more}, worker=name)
        self.workers.append(self.stack.enter_context(daemon))

    def watch(self) -> None:
        """As it is by default."""
        words = ("watch", "first.properties", "--serve", "127.0.0.1:0")
        environment = self.app.local.environment
        running = self.stack.enter_context(run_daemon(self.app.directory, *words, environment=environment))
        wait_until(lambda: any("url=" in line for line in running.plain_lines), running.tail)
        line = next(line for line in running.plain_lines if "url=" in line)
        self.watcher = urlsplit(line.split("url=")[1].split()[0]).netloc

    def addresses(self) -> list[str]:
        """Of all that live."""
        alive = [each for each in self.workers if each.process.poll() is None]
        return [
            self.watcher,
            *(urlsplit(each.wait_for("status_page_served")["url"]).netloc for each in alive),
        ]


@contextmanager
def watched(local: Local, folder: Path, name: str) -> Generator[Watched]:
    (folder / name).mkdir()
    with application(local, folder / name, f"call-{name}", shards=SHARDS[name]) as app, ExitStack() as stack:
        yield Watched(app, stack)


@dataclass(eq=False)
class Course:
    """What happens to them all, under the eyes of one Prometheus."""

    server: Prometheus
    fleets: Mapping[str, Watched]

    def scrape(self) -> None:
        """Those that are there now."""
        self.server.scrape({name: each.addresses() for name, each in self.fleets.items()})

    def goes_on(self, until: Callable[[], bool], within_s: float) -> float:
        """Records come until this holds; after how many seconds."""
        with again_and_again(self._put, PUT_EVERY_S):
            return wait_until(until, lambda: str({name: self.pages(name) for name in SHARDS}), within_s)

    def _put(self) -> None:
        for each in self.fleets.values():
            each.app.put()

    def lasts(self, holds: Callable[[], bool], for_s: float) -> None:
        """Records come for so long, and this holds all the time."""
        until_s = monotonic_s() + for_s

        def is_over() -> bool:
            assert holds(), {name: self.pages(name) for name in SHARDS}
            return monotonic_s() > until_s

        self.goes_on(is_over, for_s + 60.0)

    def pages(self, name: str) -> set[str]:
        """Alerts that somebody is woken by now; tickets of what has happened stay for a while."""
        return self.server.firing(name, severity="page")

    def are_unread(self, *names: str) -> bool:
        """Whether these are paged for, with shards that nobody reads."""
        return all("KclShardsUnread" in self.pages(name) for name in names)

    def have_ended(self) -> bool:
        """Whether no fault is paged for any more."""
        return not any(self.pages(name) - AFTERWARDS for name in SICK)

    def break_all(self) -> None:
        """A host is gone, a program does not bear its records any more, a limit is too small."""
        self.fleets["dead"].workers[0].signal(signal.SIGKILL)
        self.fleets["dead"].workers[0].end()
        (self.fleets["failing"].app.directory / HEALED).unlink()
        self.fleets["full"].workers[0].stop()
        self.fleets["full"].start("small", maxLeasesForWorker=1)
        self.scrape()

    def heal_all(self) -> None:
        """Another host, a program that does, one more worker."""
        self.fleets["dead"].start("second")
        (self.fleets["failing"].app.directory / HEALED).touch()
        self.fleets["full"].start("second", maxLeasesForWorker=1)
        self.scrape()

    def unanswered(self) -> list[str]:
        """Queries of the dashboard that show nothing of the healthy."""
        nothing: list[str] = []
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                asked = target["expr"].replace("$__rate_interval", "1m").replace("$job", "well")
                if not self.server.answer(asked) and not OF_TROUBLE.search(asked):
                    nothing.append(f"{panel['title']}: {asked}")
        return nothing

    def lines(self) -> int:
        """That the healthy have said."""
        return sum(each.lines for each in self.fleets["well"].workers)

    def end(self) -> None:
        """None has lost anything."""
        for each in self.fleets.values():
            each.app.wait_done()
            each.app.assert_account()
            for daemon in each.workers:
                if daemon.process.poll() is None:
                    daemon.stop()


@contextmanager
def all_well(local: Local, folder: Path) -> Generator[Course]:
    """They run until their leaders have told all there is to tell."""
    (folder / "prometheus").mkdir()
    with prometheus(folder / "prometheus") as server, ExitStack() as stack:
        fleets = {name: stack.enter_context(watched(local, folder, name)) for name in SHARDS}
        (folder / "failing" / HEALED).touch()
        for name, each in fleets.items():
            each.start("first", FAILING if name == "failing" else CAREFUL)
        fleets["well"].start("second")
        for each in fleets.values():
            each.workers[0].wait_for("child_started")
            each.watch()
        course = Course(server, fleets)
        course.scrape()
        course.goes_on(lambda: all(server.answer(CAPACITY % name) for name in SHARDS), SETTLED_WITHIN_S)
        yield course


def test_the_sick_are_paged_for_until_they_are_well_and_the_well_are_shown_and_quiet(
    local: Local, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with all_well(local, tmp_path) as course:
        assert not (nothing := course.unanswered()), "\n".join(nothing)
        before, began_s = course.lines(), monotonic_s()
        course.break_all()
        paged_s = course.goes_on(lambda: course.are_unread(*SICK), PAGED_WITHIN_S)
        course.lasts(lambda: course.are_unread(*SICK), STAYS_S)
        course.heal_all()
        ended_s = course.goes_on(course.have_ended, ENDS_WITHIN_S)
        lines = 60.0 * (course.lines() - before) / (monotonic_s() - began_s)
        record_property("seconds until all were paged for", round(paged_s))
        record_property("seconds until all pages had ended", round(ended_s))
        record_property("lines a minute of the healthy fleet", round(lines, 2))
        assert course.server.firing("well", within="1h") == set()
        assert lines <= LINES_A_MINUTE_MOST, [each.tail() for each in course.fleets["well"].workers]
        course.end()
