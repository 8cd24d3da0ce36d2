"""All families as text for Prometheus, in its own format or in OpenMetrics.

Owns that it is written piece by piece, so that the event loop goes on in between, and quickly: the samples of a
thousand shards are written here, because `prometheus_client` takes ten times as long for each. From it come the choice
of the format and the figures of this process; it is imported when an `Exposition` is made. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from anyio.lowlevel import checkpoint

from kcl_daemon.metrics.metric import Family, Kind, Labels
from kcl_daemon.metrics.samples import Value, everything
from kcl_daemon.metrics.totals import Histogram, Totals
from kcl_daemon.observe.snapshot import Snapshot

# Series that are written without a break: about a millisecond.
_PIECE: Final = 200
_END: Final = b"# EOF\n"
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_Series: TypeAlias = tuple[Labels, Value]


@dataclass(frozen=True, slots=True)
class Text:
    """An answer.

    Args:
        content_type: header of that name.
        body: the text.
    """

    content_type: str
    body: bytes


class Exposition:
    """Writes the text.

    Args:
        totals: what was counted.
        snapshot: how the worker is now; None: nobody can tell yet.
    """

    def __init__(self, totals: Totals, snapshot: Callable[[], Snapshot | None] = lambda: None) -> None:
        # Here, because it takes a tenth of a second: too long for the loop that will render, or for every start.
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - see above
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - see above

        self._totals = totals
        self._snapshot = snapshot
        self._choose = choose_encoder
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def render(self, accept: str = "") -> Text:
        """The text as it is now; in OpenMetrics where the caller's header `Accept` asks for that.

        Takes a millisecond or two for each hundred shards, and lets others go on after each millisecond. What comes
        from the snapshot is of one moment.
        """
        write, content_type = self._choose(accept)
        open_metrics = "openmetrics" in content_type
        pieces: list[str] = []
        known: dict[Labels, str] = {}
        for family, series in everything(self._totals, self._snapshot()):
            pieces.append(_head(family, open_metrics=open_metrics))
            while some := list(islice(series, _PIECE)):
                pieces.extend(_lines(family, some, known))
                await checkpoint()
        process = bytes(write(self._process)).removesuffix(_END)
        body = "".join(pieces).encode() + process
        return Text(content_type, body + _END if open_metrics else body)


def _head(family: Family, *, open_metrics: bool) -> str:
    # The one format names a counter as its samples are named, the other as its family is.
    name = family.sample_names[0] if family.kind is Kind.COUNTER and not open_metrics else family.name
    return f"# HELP {name} {family.help.translate(_ESCAPED) if open_metrics else family.help}\n# TYPE {name} {family.kind.value}\n"


def _lines(family: Family, series: Iterable[_Series], known: dict[Labels, str]) -> Iterator[str]:
    """One line for each sample; `known` remembers how labels are written."""
    name = family.sample_names[0]
    for labels, value in series:
        text = known.get(labels)
        if text is None:
            text = known[labels] = ",".join(f'{each}="{told.translate(_ESCAPED)}"' for each, told in labels)
        if isinstance(value, Histogram):
            yield from _of_histogram(family.name, text, value)
        else:
            yield f"{name}{{{text}}} {value!r}\n" if text else f"{name} {value!r}\n"


def _of_histogram(name: str, labels: str, value: Histogram) -> Iterator[str]:
    below = 0
    before = f"{labels}," if labels else ""
    for bound, count in zip((*map(repr, value.bounds), "+Inf"), value.counts, strict=True):
        below += count
        yield f'{name}_bucket{{{before}le="{bound}"}} {below}.0\n'
    shown = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{shown} {below}.0\n{name}_sum{shown} {value.total!r}\n"
