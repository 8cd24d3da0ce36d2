"""Writes the reference of all metrics: `python -m tools.metrics_reference > docs/metrics.md`.

A test compares the committed page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from kcl_daemon.metrics.metric import OPERATIONS, Family, Metric, MetricKind, MetricLevel, MetricUnit
from kcl_daemon.telemetry.prometheus import FROM_SNAPSHOT
from kcl_daemon.telemetry.recorder import CLOUDWATCH_METRICS, OF_EVENTS, OWN

CLOUDWATCH_OWN: Final[tuple[Metric, ...]] = tuple(each for each in OWN if each.operation)
FAMILIES: Final[tuple[Family, ...]] = tuple(
    dict.fromkeys(
        (
            OPERATIONS,
            *(each.family for each in (*CLOUDWATCH_METRICS, *OWN) if each.family is not None),
            *FROM_SNAPSHOT,
        )
    )
)

_HEAD: Final = """\
# Metrics

<!-- Written by `python -m tools.metrics_reference`; change the lists in `daemon/kcl_daemon/metrics` instead. -->

The same metrics go to three places: CloudWatch under KCL's names, Prometheus as text, and OTLP. If no exporter is on, nothing
is counted. What to alert on: see the [alert rules](../packaging/prometheus/alerts.yml) and the
[dashboard](../packaging/grafana/dashboard.json) for Grafana.
"""

_PROMETHEUS: Final = """\
## Prometheus and OTLP

**Prometheus** reads `/metrics` on the admin port (`adminPort`): the text format, or OpenMetrics or protobuf if the client asks for
it. Besides the metrics below there is `process_*`: memory, CPU and open files of the daemon. Prometheus asks for protobuf where
native histograms are on (`scrape_native_histograms: true`, or the feature flag `native-histograms` before version 3.8); only then
`kcl_record_latency_seconds` has a native histogram for each shard. Its buckets are 9 % apart (schema 3).

**OTLP** (HTTP) posts the same metrics to `metricsOtlpEndpoint` every `metricsOtlpPeriodMillis`, and once at the end. Install it
with `pip install 'kcl-daemon[otlp]'`. Names have dots and no unit: `kcl.loop_lag` with the unit `s` is `kcl_loop_lag_seconds`;
collectors that write for Prometheus produce the same names. Resource attributes: `service.name` (`kcl-daemon`),
`service.instance.id` (the worker), `kcl.application`. The names of KCL 3.5's own OpenTelemetry backend (`aws.kinesis.client.`) are
not used.

- `shard_id` and `stream` identify a shard. `stream` exists only if an application reads many streams, in KCL's form:
  `account:name:creationEpoch`, on CloudWatch too (`StreamId`). Series of a shard that the worker no longer holds disappear after
  15 minutes.
- `kcl_fleet_*` is what the leader sees (if workers take leases as in 2.x: what each worker sees). A worker that is no longer
  leader stops reporting it after three minutes.
- Worker counters without labels start at 0, so the first event is an increase. Events before the first scrape are not an increase,
  and counters with labels appear with their first event; the alert rules and the dashboard handle both. `kcl_aws_calls_total` has
  all outcomes of an operation from its first call.
- `kcl_spark_*` comes from the Spark engine, every two seconds, for its queries and for the shards of its host. Series end with the
  query, with the shard's connection and with the engine; if the engine is silent for 30 seconds, all end. Counters start again with
  each engine process.
- `kcl_landing_*` comes from the lander in the same way. `stream` is here the name of the stream.
- Some metrics count log events: {events}.
"""

_CLOUDWATCH: Final = """\
## CloudWatch

Names, dimensions and levels are KCL's. `metricsLevel` is DETAILED by default, as in KCL. CloudWatch charges for each metric, and
DETAILED has several for each shard: `metricsLevel=SUMMARY`, `metricsEnabledDimensions=Operation` or `metricsLevel=NONE` cost
less. The namespace is `metricsNamespace`, or the application's name. The daemon needs `cloudwatch:PutMetricData`; without it
there is one warning (`metrics_not_sent`), and the daemon continues.

Each metric with its dimensions becomes one statistic set. Sets are sent after `metricsBufferTimeMillis`, or when half of
`metricsMaxQueueSize` sets wait, but at most once a second; the daemon sends the rest when it stops. KCL sends whenever it has 200
sets: once a second for some 50 shards at `DETAILED`. CloudWatch stores metrics by the minute, so waiting loses nothing and saves
paid calls. A call has up to 500 sets (KCL: 20), compressed with gzip unless the SDK's configuration says
`disable_request_compression`, and a timeout of five seconds; a failed call is not sent again. More than `metricsMaxQueueSize`
waiting sets are dropped, as in KCL, and counted (`kcl_metrics_not_sent_total`).

`X.Success` is 1 or 0, `X.Time` is in milliseconds. Besides `Operation` a metric has the dimensions in the table. Some
measurements differ slightly from Java:

- Leases are renewed one by one, not in ticks. RenewAllLeases is reported once in each renewal period (0.4 of the failover
  time): success if no renewal failed in it, and the time of the slowest.
- The leader scans more often than KCL's, and audits stream by stream: PeriodicShardSyncManager is reported for each stream.
- MillisBehindLatest is the age of the oldest record that is not done, as `kcl_shard_behind_latest_seconds`, reported in each
  renewal period. KCL reports what Kinesis said with the batch that a child is about to get, and reports nothing while the
  child hangs. The last answer of Kinesis is only on Prometheus and OTLP (`kcl_shard_read_behind_seconds`).
- UnfinishedAge is not of KCL: it is the same age, of the shard of a worker that is furthest behind. Its maximum over a minute is
  the lag of the application, which an alarm or a scaling policy can use.
- WorkersWanted is not of KCL: how many workers the [application wants](scaling.md#capacity), from the leader alone.
- The phases of TableMigration count lease owners: those that do not know the single table, know it, and report to it.
"""

_JAVA_ONLY: Final = """\
### In Java only

KCL reports these metrics to CloudWatch; this daemon cannot.
"""

_NO_SEQUENCE: Final = "a new lease never starts at a sequence number"
_TRIM_ONLY: Final = "leases of child shards always start at their oldest record"
_NO_IDS: Final = "stream ids are a reserved feature that KCL has turned off"
_NO_SCAN: Final = (
    "the worker does not scan for its own leases at the start: LeaseDiscovery finds them as all others"
)
_DETAILED: Final = MetricLevel.DETAILED

JAVA_ONLY: Final = (
    (Metric("LeaseRenewerInitialize", "Fault", level=_DETAILED), _NO_SCAN),
    (Metric("ShardSyncTask", "CreateLease_SEQUENCE_NUMBER.Success", level=_DETAILED), _NO_SEQUENCE),
    *(
        (Metric("ShutdownTask", f"CreateLease_{at}.Success", level=_DETAILED), _TRIM_ONLY)
        for at in ("LATEST", "AT_TIMESTAMP", "SEQUENCE_NUMBER")
    ),
    (Metric("StreamIdFetch", "Success"), _NO_IDS),
    (Metric("StreamIdFetch", "QueueSize"), _NO_IDS),
)
"""And why it cannot."""

_OTLP_KINDS: Final = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}


def reference() -> str:
    events = ", ".join(f"`{name}`" for name in OF_EVENTS)
    parts = [
        _HEAD,
        _PROMETHEUS.format(events=events),
        *_family_table(FAMILIES),
        _CLOUDWATCH,
        *_cloudwatch_table((*CLOUDWATCH_METRICS, *CLOUDWATCH_OWN)),
        _JAVA_ONLY,
        *_java_table(JAVA_ONLY),
    ]
    return "\n".join(parts)


def _family_table(families: Iterable[Family]) -> Iterator[str]:
    rows = ["| Name | Kind | Labels | Meaning |", "|---|---|---|---|"]
    for family in sorted(families, key=lambda each: each.name):
        name = family.name if family.kind is MetricKind.HISTOGRAM else family.sample_names[0]
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
        unit = "" if metric.unit is MetricUnit.NONE else metric.unit.value
        rows.append(
            f"| {metric.operation} | {metric.name} | {unit} | {metric.level.name} | {more} | {_elsewhere(metric)} |"
        )
    yield "\n".join(rows) + "\n"


def _elsewhere(metric: Metric) -> str:
    if metric.family is not None:
        return f"`{metric.family.sample_names[0]}`"
    return "`kcl_operation_duration_seconds`" if metric.name.endswith(("Success", "Time")) else ""


def _java_table(metrics: Iterable[tuple[Metric, str]]) -> Iterator[str]:
    rows = ["| Operation | Metric | Why |", "|---|---|---|"]
    rows += [f"| {metric.operation} | {metric.name} | {why} |" for metric, why in metrics]
    yield "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
