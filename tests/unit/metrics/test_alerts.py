"""Alerts about what is rare fire at its first time, whenever that is, and only then: over scrapes of real figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.context import CallMetrics
from kcl_daemon.errors import Throttled
from kcl_daemon.exporters import telemetry_of
from kcl_daemon.metrics import kcl, own
from kcl_daemon.telemetry.recorder import KNOWN_COUNTS
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.sick.promql import Store, Vector, parsed, samples
from tests.unit.metrics.snapshots import snapshot
from tests.unit.metrics.test_dashboard import panels, rules
from tests.unit.metrics.test_metered import adapters, no_snapshot, settings

PERIOD_S = 60.0
RARE = {
    "position_trimmed": "KclRecordsLost",
    "record_set_aside": "KclRecordsPutAside",
    "record_skipped": "KclRecordsPutAside",
    "consumer_crashed": "KclDaemonFault",
}
WINDOW_S = {"KclRecordsLost": 900.0, "KclRecordsPutAside": 900.0, "KclDaemonFault": 3600.0}
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}


class Target:
    """A worker that is scraped, over its lives."""

    def __init__(self, scrapes: Store, instance: str = "host:8080") -> None:
        self._scrapes = scrapes
        self._instance = instance
        self.restart(0.0)

    def restart(self, now_s: float) -> None:
        """Another process, at the same address."""
        self._began_s = self._now_s = now_s
        self._telemetry = telemetry_of(
            settings(level=MetricsLevel.NONE), adapters(None), snapshot=self._snapshot, serves_metrics=True
        )
        self.meters = self._telemetry.adapters.meters
        self.log = self._telemetry.adapters.log

    def _snapshot(self) -> Snapshot:
        return replace(snapshot(), uptime_s=self._now_s - self._began_s)

    def scrape(self, now_s: float) -> None:
        self._now_s = now_s
        text = anyio.run(self._telemetry.exposition().render).body.decode()
        self._scrapes.scraped(self._instance, now_s, samples(text, job="app", instance=self._instance))


def evaluate(expression: str, store: Store, at_s: float) -> Vector:
    found = parsed(expression)(store, at_s)
    assert isinstance(found, dict)
    return found


class Stage:
    def __init__(self) -> None:
        self.scrapes = Store()
        self.target = Target(self.scrapes)
        self.now_s = 0.0

    def scrape_for(self, seconds: float) -> None:
        ends_s = self.now_s + seconds
        while self.now_s < ends_s:
            self.now_s += PERIOD_S
            self.target.scrape(self.now_s)

    def fires(self, alert: str) -> bool:
        return bool(evaluate(EXPRESSIONS[alert], self.scrapes, self.now_s))

    def panel(self, title: str) -> float:
        """The sum of all that a panel shows now."""
        (found,) = (panel for panel in panels() if panel["title"] == title)
        asked = [target["expr"] for target in found["targets"]]
        filled = [each.replace("$__rate_interval", "2m").replace("$job", "app") for each in asked]
        return sum(sum(evaluate(each, self.scrapes, self.now_s).values()) for each in filled)


def before_the_first_scrape(stage: Stage, event: str) -> None:
    """As a worker that comes too late for its checkpoint, at its start."""
    stage.target.log.warning(event)
    stage.scrape_for(PERIOD_S)


def after_a_calm_hour(stage: Stage, event: str) -> None:
    stage.scrape_for(3600.0)
    assert not stage.fires(RARE[event])
    stage.target.log.warning(event)
    stage.scrape_for(PERIOD_S)


def as_often_as_in_the_life_before(stage: Stage, event: str) -> None:
    stage.target.log.warning(event)
    stage.scrape_for(3600.0 + WINDOW_S[RARE[event]])
    stage.target.restart(stage.now_s)
    stage.target.log.warning(event)
    stage.scrape_for(PERIOD_S)


def right_before_a_restart(stage: Stage, event: str) -> None:
    stage.scrape_for(3600.0)
    stage.target.log.warning(event)
    stage.scrape_for(PERIOD_S)
    stage.target.restart(stage.now_s)
    stage.scrape_for(2 * PERIOD_S)


@pytest.mark.parametrize("event", RARE)
@pytest.mark.parametrize(
    "happens",
    [
        before_the_first_scrape,
        after_a_calm_hour,
        as_often_as_in_the_life_before,
        right_before_a_restart,
    ],
)
def test_the_first_event_fires_whenever_it_comes_and_for_as_long_as_its_window(
    happens: Callable[[Stage, str], None], event: str
) -> None:
    stage, alert = Stage(), RARE[event]
    happens(stage, event)
    assert stage.fires(alert)
    assert [other for other in WINDOW_S if other != alert and stage.fires(other)] == []
    stage.scrape_for(WINDOW_S[alert] + 2 * PERIOD_S)
    assert not stage.fires(alert)


def test_nothing_fires_where_nothing_happens_not_even_once_prometheus_is_back() -> None:
    stage = Stage()
    for event in RARE:
        stage.target.log.warning(event)
    stage.scrape_for(2 * 3600.0)
    assert [alert for alert in WINDOW_S if stage.fires(alert)] == []
    stage.now_s += 1200.0  # nobody scrapes
    stage.scrape_for(PERIOD_S)
    assert [alert for alert in WINDOW_S if stage.fires(alert)] == []


def test_a_burst_of_refusals_fires_though_there_was_none_before() -> None:
    stage = Stage()

    async def call(error: Exception | None) -> None:
        if error is not None:
            raise error

    async def look_up(error: Exception | None) -> None:
        await calls.counted("GetItem", call(error))

    calls = CallMetrics(stage.target.meters, "dynamodb")
    anyio.run(look_up, None)
    stage.scrape_for(600.0)
    assert not stage.fires("KclDynamoDbThrottled")
    for _ in range(25):
        with pytest.raises(Throttled):
            anyio.run(look_up, Throttled("slow down", operation="GetItem"))
    stage.scrape_for(PERIOD_S)
    assert stage.fires("KclDynamoDbThrottled")


@pytest.mark.parametrize("event", [None, "position_trimmed", "record_set_aside", "aggregate_malformed"])
def test_the_panel_of_losses_shows_the_first(event: str | None) -> None:
    stage = Stage()
    if event is not None:
        stage.target.log.info(event)
    stage.scrape_for(PERIOD_S)
    assert stage.panel("Records lost, skipped or unreadable") == (event is not None)
    stage.scrape_for(600.0)
    assert stage.panel("Records lost, skipped or unreadable") == 0.0


def test_a_panel_shows_the_first_of_a_count_with_labels() -> None:
    stage = Stage()
    stage.scrape_for(600.0)
    stage.target.log.error("lease_row_malformed")
    stage.target.meters.add(own.NOT_DELIVERED, 3, shard_id="shardId-000000000001", reason="other_shard")
    stage.scrape_for(PERIOD_S)
    assert sum(evaluate("increase(kcl_log_events_total[2m])", stage.scrapes, stage.now_s).values()) == 0.0
    assert stage.panel("Warnings and errors in the log") == 1.0
    assert stage.panel("Records lost, skipped or unreadable") == 3.0
    stage.target.log.error("lease_row_malformed")
    stage.scrape_for(PERIOD_S)
    assert stage.panel("Warnings and errors in the log") == 2.0
    stage.scrape_for(600.0)
    assert stage.panel("Warnings and errors in the log") == 0.0


def test_counts_of_the_whole_worker_are_there_from_the_start_and_stay() -> None:
    known = {family.name for family, _ in KNOWN_COUNTS}
    for metric in (own.TRIMMED, own.DEAD_LETTERS, own.SKIPPED, own.CRASHES, kcl.RENEWAL_LOST):
        assert metric.family is not None
        assert metric.family.name in known
    telemetry = telemetry_of(
        settings(level=MetricsLevel.NONE), adapters(None), snapshot=no_snapshot, serves_metrics=True
    )
    text = anyio.run(telemetry.exposition().render).body.decode()
    assert "kcl_positions_trimmed_total 0.0\n" in text
    assert 'kcl_table_migration_faults_total{step="read"} 0.0\n' in text
    assert "kcl_log_events_total" not in text  # nobody knows its labels yet
