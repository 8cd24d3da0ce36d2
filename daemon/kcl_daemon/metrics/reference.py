"""Writes the reference of all metrics from the list: `python -m kcl_daemon.metrics.reference > docs/metrics.md`.

Owns the words around the tables. A test says that the committed page is what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from kcl_daemon.metrics.catalog import FAMILIES, TOLD
from kcl_daemon.metrics.events import OF_EVENTS
from kcl_daemon.metrics.java_only import JAVA_ONLY
from kcl_daemon.metrics.metric import Family, Kind, Metric, Unit

_HEAD: Final = """\
# Metrics

<!-- Written by `python -m kcl_daemon.metrics.reference`; change the lists in `daemon/kcl_daemon/metrics` instead. -->

The same figures go three ways: to CloudWatch under KCL's names, to Prometheus as text, and over OTLP. All of them are in
one list, from which this page is written. Where nobody is told, nothing is counted.
"""

_PROMETHEUS: Final = """\
## Prometheus and OTLP

`/metrics` on the admin port (`adminPort`) gives the text format, or OpenMetrics to those who ask for it. Beside the families
below there is `process_*`: memory, CPU and open files of the daemon.

Over OTLP (HTTP) the same is posted to `metricsOtlpEndpoint` each `metricsOtlpPeriodMillis`, and once at the end:
`pip install 'kcl-daemon[otlp]'`. Names have dots there and no unit: `kcl.loop_lag` with the unit `s` is
`kcl_loop_lag_seconds`; a collector that writes for Prometheus comes to the same names. Attributes of the resource:
`service.name` (`kcl-daemon`), `service.instance.id` (the worker), `kcl.application`. KCL 3.5 has an OpenTelemetry backend
with names of its own (`aws.kinesis.client.`); those are not used.

- `shard_id` and `stream` tell shards apart; `stream` is there only where an application reads many, and says which one it
  is as KCL does: `account:name:creationEpoch`, on CloudWatch too (`StreamId`).
- `kcl_fleet_*` is what the leader sees (where workers take leases as in 2.x: what each sees). A worker that leads no
  more stops telling it after three minutes.
- Counts of the whole worker, without labels, are there from its start, at 0: the first event is an increase. What comes
  before the first scrape is not, and counts with labels come with their first event; the alert rules and the dashboard ask
  for these, too. `kcl_aws_calls_total` has all outcomes of an operation once it is called.
- Series of a shard that is not held any more go after a quarter of an hour.
- `kcl_spark_*` is told by the host that has the Spark engine, each two seconds, for its queries and for all shards that it
  is fed, also by other hosts (`sparkEngine`): those tell nothing of it, so that sums over hosts count nothing twice. Series
  go with the query, with the shard's connection and with the engine; of an engine that is silent for 30 seconds all go.
  What is counted begins anew with each engine process.
- Some come from the log, as the events are written: {events}.
- A [dashboard](../packaging/grafana/dashboard.json) for Grafana and [alert rules](../packaging/prometheus/alerts.yml) are
  in `packaging/`.
"""

_CLOUDWATCH: Final = """\
## CloudWatch

KCL's names, dimensions and levels. `metricsLevel` is DETAILED unless set, as in KCL; CloudWatch asks for money for each
metric, and DETAILED with a metric for each shard is many: `metricsLevel=SUMMARY`, `metricsEnabledDimensions=Operation` or
`metricsLevel=NONE` make it cheaper. The namespace is `metricsNamespace`, else the application's name. The daemon needs
`cloudwatch:PutMetricData`; without it there is one warning (`metrics_not_sent`), and the work goes on.

Figures come together in statistic sets, one for each metric with its dimensions, and are sent after
`metricsBufferTimeMillis`, or when half of `metricsMaxQueueSize` sets wait, but not more often than each second; at the end
of the daemon the rest is sent. KCL sends as soon as 200 sets have come together, which is once a second for some 50 shards
at `DETAILED`; CloudWatch keeps figures by the minute, so that nothing is lost by waiting, and a call less is a call less to
pay. A call has up to 500 sets (KCL: 20), packed by gzip unless the SDK's configuration says `disable_request_compression`,
and five seconds; what fails is not sent again. At most `metricsMaxQueueSize` sets wait; what comes beyond is dropped, as by
KCL, and counted (`kcl_metrics_not_sent_total`).

`X.Success` is 1 or 0, `X.Time` is in milliseconds. Besides `Operation` a metric has the dimensions that the table names.
Here a few things are measured a little differently than in Java:

- Leases are renewed one by one, not in ticks. RenewAllLeases is told once in each renewal period (0.4 of the fail-over
  time): it succeeded if no renewal failed in it, and took as long as the slowest.
- The leader looks more often than KCL's, and a shard is audited stream by stream: PeriodicShardSyncManager is told for
  each stream.
- MillisBehindLatest is the age of the oldest record that is not done, as `kcl_shard_behind_latest_seconds`; it is told in each
  renewal period. KCL tells what Kinesis said with the batch that a child is about to be given, and falls silent while the
  child hangs. What Kinesis said with its last answer is on Prometheus and OTLP alone (`kcl_shard_read_behind_seconds`).
- The phases of TableMigration count lease owners: those that do not know the single table, know it, and report to it.
"""

_JAVA_ONLY: Final = """\
### In Java only

What KCL tells CloudWatch and this daemon cannot.
"""

_OTLP_KINDS: Final = {Kind.COUNTER: "counter", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}


def reference() -> str:
    """The page, in Markdown."""
    events = ", ".join(f"`{name}`" for name in OF_EVENTS)
    parts = [
        _HEAD,
        _PROMETHEUS.format(events=events),
        *_family_table(FAMILIES),
        _CLOUDWATCH,
        *_cloudwatch_table(TOLD),
        _JAVA_ONLY,
        *_java_table(JAVA_ONLY),
    ]
    return "\n".join(parts)


def _family_table(families: Iterable[Family]) -> Iterator[str]:
    rows = ["| Name | Kind | Labels | What it says |", "|---|---|---|---|"]
    for family in sorted(families, key=lambda each: each.name):
        name = family.name if family.kind is Kind.HISTOGRAM else family.sample_names[0]
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{name}` | {_OTLP_KINDS[family.kind]} | {labels} | {family.help} |")
    yield "\n".join(rows) + "\n"


def _cloudwatch_table(metrics: Iterable[Metric]) -> Iterator[str]:
    rows = [
        "| Operation | Metric | Unit | Level | More dimensions | On Prometheus |",
        "|---|---|---|---|---|---|",
    ]
    for metric in sorted(metrics, key=lambda each: each.operation):
        more = ", ".join(name for name in metric.dimensions if name != "Operation")
        unit = "" if metric.unit is Unit.NONE else metric.unit.value
        rows.append(
            f"| {metric.operation} | {metric.name} | {unit} | {metric.level.name} | {more} | {_elsewhere(metric)} |"
        )
    yield "\n".join(rows) + "\n"


def _elsewhere(metric: Metric) -> str:
    if metric.family is not None:
        return f"`{metric.family.sample_names[0]}`"
    return "`kcl_operation_duration_seconds`" if metric.name.endswith(("Success", "Time")) else ""


def _java_table(metrics: Iterable[Metric]) -> Iterator[str]:
    rows = ["| Operation | Metric | Why |", "|---|---|---|"]
    rows += [f"| {metric.operation} | {metric.name} | {metric.java_only} |" for metric in metrics]
    yield "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
