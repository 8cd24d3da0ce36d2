"""Metrics as protobuf: read by the library of Google, with the messages of Prometheus made here."""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as plain_text

from kcl_daemon.metrics.metric import MetricKind
from kcl_daemon.metrics.own import RECORD_LATENCY
from kcl_daemon.progress.flow import SCHEMA, ZERO, ZERO_S, LatencyHistogram
from kcl_daemon.telemetry.prometheus import PrometheusExposition
from kcl_daemon.telemetry.protobuf import CONTENT_TYPE, native, varint, wanted
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.unit.metrics.snapshots import ENGINE, LANDER, shard, snapshot, with_lanes
from tests.unit.telemetry.test_prometheus import everything, text_of
from tools.metrics_reference import FAMILIES

ACCEPT: Final = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)

# Of io.prometheus.client in version 0.6.1 of client_model: number, name, kind, of which message; `*` repeats.
_MESSAGES: Final = {
    "LabelPair": "1 name string, 2 value string",
    "Gauge": "1 value double",
    "Counter": "1 value double",
    "Bucket": "1 cumulative_count uint64, 2 upper_bound double",
    "BucketSpan": "1 offset sint32, 2 length uint32",
    "Histogram": "1 sample_count uint64, 2 sample_sum double, 3 bucket *Bucket, 5 schema sint32, 6 zero_threshold double, "
    "7 zero_count uint64, 12 positive_span *BucketSpan, 13 positive_delta *sint64",
    "Metric": "1 label *LabelPair, 2 gauge Gauge, 3 counter Counter, 7 histogram Histogram",
    "MetricFamily": "1 name string, 2 help string, 3 type int32, 4 metric *Metric",
}
_KINDS: Final = {"double": 1, "uint64": 4, "int32": 5, "string": 9, "uint32": 13, "sint32": 17, "sint64": 18}


def _made() -> type[Any]:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="test", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, called, kind = field.split()
            repeated, kind = kind.startswith("*"), kind.removeprefix("*")
            added = message.field.add(name=called, number=int(number), label=3 if repeated else 1)
            added.type = _KINDS.get(kind, 11)  # type: ignore[assignment] # numbers of descriptor.proto
            if kind not in _KINDS:
                added.type_name = f".test.{kind}"
            elif repeated:
                added.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("test.MetricFamily"))
    return made


FAMILY: Final = _made()


def read(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while body:
        size = shift = place = 0
        while True:
            size |= (body[place] & 0x7F) << shift
            shift, place = shift + 7, place + 1
            if not body[place - 1] & 0x80:
                break
        family = FAMILY.FromString(body[place : place + size])
        assert family.name not in found
        found[family.name] = family
        body = body[place + size :]
    return found


def rendered(seen: Snapshot) -> dict[str, Any]:
    answer = anyio.run(PrometheusExposition(everything().totals, lambda: seen).render, ACCEPT)
    assert answer.content_type == CONTENT_TYPE
    return read(answer.body)


def labels_of(metric: Any) -> dict[str, str]:
    return {pair.name: pair.value for pair in metric.label}


def test_all_that_is_in_the_text_is_in_the_messages() -> None:
    seen = snapshot(shard(1), with_lanes(2), spark=ENGINE, landing=LANDER)
    families, text = rendered(seen), {each.name: each for each in plain_text(text_of(everything(), seen))}
    for family in FAMILIES:
        name = family.sample_names[0] if family.kind is MetricKind.COUNTER else family.name
        found, kind = families[name], family.kind.value
        assert (found.help, found.type) == (family.help, {"counter": 0, "gauge": 1, "histogram": 4}[kind])
        samples = [each for each in text[family.name].samples if not each.name.endswith("_bucket")]
        if family.kind is MetricKind.HISTOGRAM:
            there = [
                each
                for metric in found.metric
                if metric.histogram.bucket
                for each in (
                    (labels_of(metric), float(metric.histogram.sample_count)),
                    (labels_of(metric), metric.histogram.sample_sum),
                )
            ]
        else:
            there = [(labels_of(each), getattr(each, kind).value) for each in found.metric]
        assert there == [(sample.labels, sample.value) for sample in samples], name
    assert families["process_open_fds"].metric[0].gauge.value > 0
    assert families["process_cpu_seconds_total"].type == 0


def test_a_classic_histogram_has_its_bounds_and_a_native_one_has_none() -> None:
    family = rendered(snapshot(shard(1), shard(2)))[RECORD_LATENCY.name]
    of_all, *of_shards = family.metric
    assert labels_of(of_all) == {}
    assert [bucket.upper_bound for bucket in of_all.histogram.bucket] == list(RECORD_LATENCY.buckets)
    counts = {bucket.upper_bound: bucket.cumulative_count for bucket in of_all.histogram.bucket}
    assert (counts[0.5], counts[1.0], counts[10.0], counts[60.0]) == (0, 6, 10, 10)
    assert (of_all.histogram.sample_count, len(of_all.histogram.positive_span)) == (10, 0)
    assert [labels_of(each)["shard_id"][-1] for each in of_shards] == ["1", "2"]
    for each in of_shards:
        assert (each.histogram.schema, each.histogram.zero_threshold) == (SCHEMA, ZERO_S)
        assert (each.histogram.sample_count, len(each.histogram.bucket)) == (5, 0)


def native_buckets(histogram: Any) -> dict[int, int]:
    """As Prometheus decodes them."""
    found, bucket, count, deltas = dict[int, int](), 0, 0, iter(histogram.positive_delta)
    for span in histogram.positive_span:
        bucket += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[bucket] = count
            bucket += 1
    assert next(deltas, None) is None
    return found


@given(st.dictionaries(st.integers(ZERO, 200), st.integers(1, 2**40), max_size=60))
def test_native_buckets_come_through(buckets: dict[int, int]) -> None:
    histogram = LatencyHistogram()
    histogram.buckets.update(buckets)
    histogram.count, histogram.total_s = sum(buckets.values()), 12.5
    family = FAMILY()
    family.MergeFromString(native(b"", histogram))
    found = family.metric[0].histogram
    assert native_buckets(found) == {at: count for at, count in buckets.items() if at != ZERO}
    assert (found.zero_count, found.sample_count) == (buckets.get(ZERO, 0), histogram.count)
    assert found.sample_sum == 12.5


@pytest.mark.parametrize(
    ("number", "found"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (2**63, b"\x80" * 9 + b"\x01")]
)
def test_varints(number: int, found: bytes) -> None:
    assert varint(number) == found


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        (ACCEPT, True),
        (ACCEPT.replace("q=0.6", "q=0.4"), False),
        (ACCEPT.replace("q=0.6", "q=0"), False),
        (ACCEPT.replace("q=0.6", "q=much"), False),
        (ACCEPT.replace("delimited", "text"), False),
        (ACCEPT.replace(";", " ; ").replace(",", " , "), True),
        ("", False),
        ("text/plain", False),
        ("*/*", False),
    ],
)
def test_protobuf_is_given_to_a_client_that_prefers_it(accept: str, is_wanted: bool) -> None:
    assert wanted(accept) is is_wanted
