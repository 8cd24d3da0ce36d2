"""`kcl-daemon leases tree` as text: which shard came out of which, and how far each has been read.

Pure. What is not in the lease table any more is not drawn; a shard that came out of two stands below the first and is named
below the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from kcl_daemon.cli.leases_seen import Lag, Seen
from kcl_daemon.cli.leases_view import shortened
from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.observe.words import duration


def tree_lines(seen: Seen) -> tuple[str, ...]:
    """The lines; one for each lease, and one more for each further parent."""
    if not seen.leases:
        return ("no leases to show",)
    streams = dict.fromkeys(lease.stream for lease in seen.leases)
    return tuple(line for stream in streams for line in _stream_lines(seen, stream))


def _stream_lines(seen: Seen, stream: StreamIdentity | None) -> Iterator[str]:
    """Of one stream; of many it stands above its shards."""
    if stream is not None:
        yield f"{stream}:"
    by_id = {lease.shard_id: lease for lease in seen.leases if lease.stream == stream}
    below = _children(by_id)
    roots = [shard_id for shard_id, lease in by_id.items() if not _known_parents(lease, by_id)]
    drawing = _Drawing(seen, by_id, below)
    for root in roots:
        yield from drawing.lines(root, "", "")


def _known_parents(lease: Lease, by_id: Mapping[ShardId, Lease]) -> list[ShardId]:
    return sorted(parent for parent in lease.parent_shard_ids if parent in by_id)


def _children(by_id: Mapping[ShardId, Lease]) -> Mapping[ShardId, Sequence[ShardId]]:
    below: dict[ShardId, list[ShardId]] = defaultdict(list)
    for shard_id, lease in by_id.items():
        for parent in _known_parents(lease, by_id):
            below[parent].append(shard_id)
    return below


class _Drawing:
    def __init__(
        self, seen: Seen, by_id: Mapping[ShardId, Lease], below: Mapping[ShardId, Sequence[ShardId]]
    ) -> None:
        self._seen = seen
        self._by_id = by_id
        self._below = below
        self._drawn: set[ShardId] = set()

    def lines(self, root: ShardId, lead: str, indent: str) -> Iterator[str]:
        """A shard and all below it; an explicit stack, as lineages may be thousands of generations deep."""
        stack = [(root, lead, indent)]
        while stack:
            shard_id, lead, indent = stack.pop()
            if shard_id in self._drawn:
                yield f"{lead}{shard_id}, see above"
                continue
            self._drawn.add(shard_id)
            yield f"{lead}{shard_id}  {self._state(self._by_id[shard_id])}"
            children = self._below.get(shard_id, ())
            for number, child in reversed(list(enumerate(children, start=1))):
                is_last = number == len(children)
                stack.append(
                    (
                        child,
                        f"{indent}{'`- ' if is_last else '|- '}",
                        f"{indent}{'   ' if is_last else '|  '}",
                    )
                )

    def _state(self, lease: Lease) -> str:
        return on_one_line(", ".join(self._words(lease)))

    def _words(self, lease: Lease) -> Iterator[str]:
        if lease.is_finished:
            yield "finished"
            return
        waits_for = [
            parent for parent in _known_parents(lease, self._by_id) if not self._by_id[parent].is_finished
        ]
        if waits_for:
            yield f"waits for {' and '.join(waits_for)}"
        yield f"at {shortened(lease.checkpoint)}"
        if lease.actual_owner is None:
            yield "no worker reads it"
        else:
            silent = " (silent)" if lease.lease_key in self._seen.fleet.abandoned else ""
            yield f"{lease.actual_owner}{silent}"
        if lease.checkpoint_owner is not None:
            yield f"moving to {lease.lease_owner}"
        lag = None if self._seen.lags is None else self._seen.lags.get(lease.lease_key)
        if lag is not None:
            yield _behind(lag)


def _behind(lag: Lag) -> str:
    if lag.millis is None:
        return f"lag unknown: {lag.unknown_because}"
    return f"{duration(lag.millis / 1000)} behind"
