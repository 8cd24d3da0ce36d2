"""Metrics in the protobuf format of Prometheus (`io.prometheus.client`), which alone has native histograms.

Written by hand: a protobuf library would have to be of the same version as OTLP's, and the user's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from math import isinf
from typing import Final

from kcl_daemon.metrics.metric import Labels, MetricKind
from kcl_daemon.progress.flow import SCHEMA, ZERO, ZERO_S, LatencyHistogram

CONTENT_TYPE: Final = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
_KINDS: Final = {MetricKind.COUNTER: 0, MetricKind.GAUGE: 1, MetricKind.HISTOGRAM: 4}
_double: Final = struct.Struct("<d").pack
_VARINT, _FIXED, _BYTES = 0, 1, 2
_SHORT: Final = tuple(bytes((number,)) for number in range(0x80))


def varint(number: int) -> bytes:
    if number < 0x80:
        return _SHORT[number]
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _signed(number: int) -> bytes:
    return varint(2 * number if number >= 0 else -2 * number - 1)


def _number(field: int, number: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(number)


def _fixed(field: int, value: float) -> bytes:
    return varint(field << 3 | _FIXED) + _double(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def labels_of(labels: Labels) -> bytes:
    return b"".join(
        _bytes(1, _bytes(1, name.encode()) + _bytes(2, value.encode("utf-8", "replace")))
        for name, value in labels
    )


def family(name: str, text: str, kind: MetricKind, metrics: Iterable[bytes]) -> bytes:
    head = _bytes(1, name.encode()) + _bytes(2, text.encode()) + _number(3, _KINDS[kind])
    body = head + b"".join(metrics)
    return varint(len(body)) + body


def value(labels: bytes, kind: MetricKind, number: float) -> bytes:
    """As the other functions would write it: there are thousands."""
    inner = b"\x1a\x09\x09" if kind is MetricKind.COUNTER else b"\x12\x09\x09"
    return b"\x22" + varint(len(labels) + 11) + labels + inner + _double(number)


def classic(labels: bytes, bounds: Sequence[float], counts: Sequence[int], total: float) -> bytes:
    """`counts` are of the buckets, the last one without a bound."""
    below, buckets = 0, list[bytes]()
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        below += count
        if not isinf(bound):  # readers add that one
            buckets.append(_bytes(3, _number(1, below) + _fixed(2, bound)))
    return _bytes(4, labels + _bytes(7, _number(1, below) + _fixed(2, total) + b"".join(buckets)))


def native(labels: bytes, histogram: LatencyHistogram) -> bytes:
    ordered = sorted(each for each in histogram.buckets.items() if each[0] != ZERO)
    spans, deltas, before = list[tuple[int, int]](), bytearray(), 0
    following: int | None = None
    for bucket, count in ordered:
        if bucket == following:
            spans[-1] = spans[-1][0], spans[-1][1] + 1
        else:
            spans.append((bucket - (following or 0), 1))
        following = bucket + 1
        deltas += _signed(count - before)
        before = count
    body = (
        _number(1, histogram.count)
        + _fixed(2, histogram.total_s)
        + varint(5 << 3 | _VARINT)
        + _signed(SCHEMA)
        + _fixed(6, ZERO_S)
        + _number(7, histogram.buckets.get(ZERO, 0))
        + b"".join(
            _bytes(12, varint(1 << 3) + _signed(offset) + _number(2, length)) for offset, length in spans
        )
        + _bytes(13, bytes(deltas))
    )
    return _bytes(4, labels + _bytes(7, body))


def wanted(accept: str) -> bool:
    """Whether the header `Accept` prefers this format to all others."""
    ours, others = 0.0, 0.0
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            continue
        if kind != "application/vnd.google.protobuf":
            others = max(others, weight)
        elif {"proto=io.prometheus.client.metricfamily", "encoding=delimited"} <= set(parameters):
            ours = max(ours, weight)
    return ours > 0 and ours >= others
