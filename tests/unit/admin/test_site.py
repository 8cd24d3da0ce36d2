"""What is under which path, how often figures are sampled, and that nobody waits for the page to be made."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus

import anyio
import pytest

from kcl_daemon.admin.site import (
    LIVE_AT_LEAST_EVERY_S,
    LIVE_EVERY_S,
    AdminAccess,
    AdminRequest,
    AdminResponse,
    AdminSite,
    status_from,
)
from kcl_daemon.admin.view import UNWATCHED_EVERY_S
from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.simulator.loop import run_virtual
from tests.unit.admin.stage import READING, READY, SNAPSHOT, Standing, many
from tests.unit.fakes import LoopClock
from tests.unit.metrics.snapshots import BEHIND

TOKEN = "0123456789abcdef"
Record = Callable[[str, object], None]


@dataclass(frozen=True, slots=True)
class Text:
    content_type: str
    body: bytes


class Figures:
    """Metrics that tell in which format they were asked for."""

    async def render(self, accept: str = "") -> Text:
        return Text("text/x", f"asked for {accept}".encode())


def ask(path: str, *, source: Standing | None = None, token: str | None = None, **more: str) -> AdminResponse:
    """The answer to one request of somebody on this machine."""

    async def main() -> AdminResponse:
        access = AdminAccess("127.0.0.1", token)
        site = AdminSite(source or Standing(), access=access, clock=LoopClock(), metrics=Figures().render)
        return await site.answer(AdminRequest("GET", path, "localhost", **more))

    return run_virtual(main)


def test_each_path_of_the_site_has_its_content_type() -> None:
    kinds = {path: ask(path).content_type for path in ("/", "/live", "/status.json", "/metrics", "/livez")}
    assert kinds == {
        "/": "text/html; charset=utf-8",
        "/live": "text/html; charset=utf-8",
        "/status.json": "application/json",
        "/metrics": "text/x",
        "/livez": "text/plain; charset=utf-8",
    }
    assert status_from(ask("/status.json").body).snapshot == SNAPSHOT
    assert ask("/metrics", accept="a/b").body == b"asked for a/b"


def test_an_unknown_path_is_not_found_and_told_the_paths_there_are() -> None:
    answer = ask("/favicon.ico")
    assert (answer.status, answer.body) == (
        404,
        b"there is /, /live, /status.json, /capacity.json, /metrics, /livez, /readyz\n",
    )


def test_without_metrics_there_are_none() -> None:
    async def main() -> AdminResponse:
        site = AdminSite(Standing(), access=AdminAccess("127.0.0.1"), clock=LoopClock())
        return await site.answer(AdminRequest("GET", "/metrics", "localhost"))

    assert run_virtual(main).status == 404


def test_the_page_may_run_what_is_in_it_and_nothing_else() -> None:
    policy = ask("/").headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("snapshot", "status"), [(READY, 200), (SNAPSHOT, 503), (replace(READY, started=False), 503)]
)
def test_readyz_is_the_judgement_of_the_page(snapshot: Snapshot, status: int) -> None:
    answer = ask("/readyz", source=Standing(snapshot))
    assert answer.status == status
    assert answer.body.startswith(b"ready\n" if status == 200 else b"not ready\n")
    assert ask("/livez", source=Standing(snapshot)).status == 200


def test_who_shows_no_token_learns_yes_or_no_from_a_probe_and_nothing_from_the_rest() -> None:
    assert ask("/readyz", token=TOKEN).body == b"not ready\n"
    shown = ask("/readyz", token=TOKEN, authorization=f"Bearer {TOKEN}")
    assert b"shardId-000000000002 makes no progress" in shown.body
    for path in ("/", "/live", "/status.json", "/capacity.json", "/metrics", "/nothing"):
        assert ask(path, token=TOKEN).status == 401


def test_the_page_does_not_wait_for_the_tables_and_its_renewal_asks_them() -> None:
    source = Standing()
    ask("/", source=source)
    assert source.asked_for == 0
    ask("/live", source=source)
    ask("/status.json", source=source)
    assert source.asked_for == 2


def test_many_who_look_at_once_cost_as_much_as_one() -> None:
    source = Standing()

    async def main() -> None:
        site = AdminSite(source, access=AdminAccess("127.0.0.1"), clock=LoopClock())
        request = AdminRequest("GET", "/live", "localhost")
        for _ in range(5):
            await site.answer(request)
        assert source.asked_for == 1
        await anyio.sleep(LIVE_EVERY_S)
        await site.answer(request)
        assert source.asked_for == 2

    run_virtual(main)


class SlowClock(LoopClock):
    """While `slow_s` is set, every look at it takes as long: a machine that stands still."""

    def __init__(self) -> None:
        self.slow_s = 0.0
        self._passed_s = 0.0

    def monotonic(self) -> float:
        self._passed_s += self.slow_s
        return super().monotonic() + self._passed_s


@pytest.mark.parametrize(("slow_renderings", "every_s"), [(1, 2.0), (2, 2.0), (6, LIVE_AT_LEAST_EVERY_S)])
def test_a_rendering_that_took_long_by_chance_does_not_make_the_page_stand_still(
    slow_renderings: int, every_s: float
) -> None:
    async def main() -> str:
        clock = SlowClock()
        site = AdminSite(Standing(), access=AdminAccess("127.0.0.1"), clock=clock)
        answer = AdminResponse(HTTPStatus.OK, b"")
        for slow in (*[False] * 3, *[True] * slow_renderings, False):
            await anyio.sleep(LIVE_EVERY_S)
            clock.slow_s = 0.3 if slow else 0.0
            answer = await site.answer(AdminRequest("GET", "/live", "localhost"))
        return answer.body.decode()

    assert f'data-every="{every_s:.1f}"' in run_virtual(main)


def test_throughput_is_sampled_more_often_while_somebody_looks() -> None:
    class Counting(Standing):
        calls = 0

        def now(self) -> Snapshot:
            self.calls += 1
            return super().now()

    source = Counting(READY)

    async def main() -> tuple[int, int, int, str]:
        site = AdminSite(source, access=AdminAccess("127.0.0.1"), clock=LoopClock())
        idle, watched, extra, live = 0, 0, 0, AdminResponse(HTTPStatus.OK, b"")
        async with anyio.create_task_group() as group:
            group.start_soon(site.sample)
            await anyio.sleep(4 * UNWATCHED_EVERY_S - 1)
            idle = source.calls
            for number in range(10):
                await site.answer(AdminRequest("GET", "/status.json", "localhost"))
                await anyio.sleep(LIVE_EVERY_S + 0.02 * (-1) ** number)
            watched, extra = len(site._history.of(READING.key, 0.0)) - idle, source.calls - idle
            live = await site.answer(AdminRequest("GET", "/live", "localhost"))
            group.cancel_scope.cancel()
        return idle, watched, extra, live.body.decode()

    idle, watched, extra, live = run_virtual(main)
    assert 4 <= idle <= 5
    assert watched >= 9
    assert extra == 0, "who looks has a snapshot made anyway"
    assert live.count("<polyline") == 1, f"of {READING.key}"


class CpuClock(LoopClock):
    """Time is what this thread has worked; notes each piece of work between two pauses."""

    def __init__(self) -> None:
        self.slices: list[float] = []
        self._began_s = time.thread_time()

    def monotonic(self) -> float:
        return time.thread_time()

    async def sleep(self, seconds: float) -> None:
        self.slices.append(time.thread_time() - self._began_s)
        await anyio.sleep(seconds)
        self._began_s = time.thread_time()


@pytest.mark.parametrize("path", ["/", "/live", "/status.json"])
def test_with_a_thousand_shards_nothing_is_held_up_for_long(path: str, record_property: Record) -> None:
    async def main() -> list[float]:
        clock = CpuClock()
        site = AdminSite(Standing(many(1000)), access=AdminAccess("127.0.0.1"), clock=clock)
        request = AdminRequest("GET", path, "localhost")
        await site.answer(request)  # what is made once
        site._live = None
        clock.slices.clear()
        clock._began_s = time.thread_time()
        assert (await site.answer(request)).status == 200
        await clock.sleep(0)
        return clock.slices

    gc.collect()  # what tests before have left is not ours to be measured
    best = min((anyio.run(main) for _ in range(6)), key=max)
    record_property("ms", [round(each * 1000, 1) for each in best])
    assert max(best) < 0.005


def test_who_looks_costs_less_than_one_percent_of_a_core(record_property: Record) -> None:
    async def main() -> tuple[float, float]:
        clock = CpuClock()
        site = AdminSite(Standing(many(256)), access=AdminAccess("127.0.0.1"), clock=clock)
        request = AdminRequest("GET", "/live", "localhost")
        await site.answer(request)
        began_s = time.thread_time()
        site._live = None
        answer = await site.answer(request)
        took_s = time.thread_time() - began_s
        every_s = float(answer.body.partition(b'data-every="')[2].partition(b'"')[0])
        return took_s, every_s

    gc.collect()  # as above
    took_s, every_s = min(anyio.run(main) for _ in range(6))
    record_property("percent", round(100 * took_s / every_s, 2))
    assert took_s / every_s < 0.005


SAID = Capacity(1_770_000_000_000, WorkerId("w-1"), 2, 0, 3, "a reason", "90 s behind", "", BEHIND)


def test_capacity_is_the_leaders_word_with_its_age_and_a_plain_number_for_autoscalers() -> None:
    leader = replace(READY, capacity=SAID, at_ms=SAID.at_ms + 12_000)
    document = json.loads(ask("/capacity.json", source=Standing(leader)).body)
    assert (document["workersWanted"], document["ageSeconds"], document["by"]) == (3, 12.0, "w-1")
    assert document["whole"]["binds"] == "child"


def test_capacity_that_nobody_has_told_is_an_error_for_autoscalers() -> None:
    answer = ask("/capacity.json", source=Standing(READY))
    assert (answer.status, answer.body.split(b":")[0]) == (503, b"nothing is known yet")


def test_the_page_and_status_json_have_the_sentence_and_its_age_once_it_is_old() -> None:
    shown = replace(READY, capacity=SAID, at_ms=SAID.at_ms + 12_000)
    assert b"90 s behind; 3 workers wanted: a reason<" in ask("/live", source=Standing(shown)).body
    assert status_from(ask("/status.json", source=Standing(shown)).body).snapshot.capacity == SAID
    told = replace(SAID, sentence="90 s behind; 2 workers, 3 wanted: a reason; not all is known")
    page = ask("/live", source=Standing(replace(shown, capacity=told))).body
    assert b"<dd>90 s behind; 2 workers, 3 wanted: a reason; not all is known</dd>" in page
    old = replace(shown, at_ms=SAID.at_ms + 240_000)
    assert b"(said 4 min ago by w-1)" in ask("/live", source=Standing(old)).body
