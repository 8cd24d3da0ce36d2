"""The DynamoDB tables of a run: their writers, and their streams, which roll, split, end, are switched off and on again.

Owns writing to the model and keeps the truth up to date with it. Knows nothing of readers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from kcl_daemon.transport.changes_answers import stream_name
from kcl_local.changes.model import StreamsModel
from kcl_local.changes.stream import Item, Shard, Stream
from kcl_protocol.messages import Record
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.deliveries import Incarnation
from tests.simulator.faults import RowWrite
from tests.simulator.items import ID, VERSION, Change, ItemRules, change_of
from tests.simulator.loop import current_loop, now
from tests.simulator.plan import ChangesPlan, Roll, Split, SwitchStream
from tests.simulator.segments import Segments, SegmentTruth, rank_of, segment_of
from tests.simulator.truth import ShardTruth, Truth
from tests.simulator.violation import report

_TICK_S: Final = 0.5
_DELETED: Final = 0.15
_SCANNED_AT_ONCE: Final = 25
_TRIES: Final = 10_000


class ChangedTable:
    """One table.

    Args:
        one_of_many: its shards are known by their lease keys.
    """

    def __init__(
        self,
        model: StreamsModel,
        name: str,
        *,
        plan: ChangesPlan,
        truth: Truth,
        rules: ItemRules,
        chance: Chance,
        one_of_many: bool,
    ) -> None:
        self.name = name
        self._model = model
        self._plan = plan
        self._truth = truth
        self._rules = rules
        self._chance = chance
        self._one_of_many = one_of_many
        self._streams: list[Stream] = []
        self._seen: frozenset[str] = frozenset()
        self._versions: dict[str, int] = {}
        self.items: dict[str, int] = {}
        self.prefix = ""
        self.is_read_from_s: float | None = None

    @property
    def arn(self) -> str:
        """Of its first stream."""
        return self._streams[0].arn

    @property
    def is_on(self) -> bool:
        """Whether its changes go to a stream."""
        return self._model.is_enabled(self.name)

    def switch_on(self, shards: int) -> None:
        """Make a stream, unless there is one."""
        if not self.is_on:
            self._streams.append(self._model.enable(self.name, keys=(ID,), shards=shards))
            if self._one_of_many:
                account = self.arn.split(":")[4]
                self.prefix = f"{account}:{stream_name(self.arn)}:1:"
            self.poll()

    def switch_off(self) -> None:
        """Its stream ends."""
        if self.is_on:
            self._model.disable(self.name)
            self.poll()

    def write(self, count: int) -> None:
        """So many changes; none while there is no stream."""
        for _ in range(count if self.is_on else 0):
            self._write(f"{self.name}/{self._chance.between(0, self._plan.items - 1)}")
        self.poll()

    def _write(self, item: str) -> None:
        old = self.items.get(item)
        new: int | None = self._versions.get(item, 0) + 1
        if old is not None and self._chance.happens(_DELETED):
            new = None
            del self.items[item]
        else:
            assert new is not None
            self.items[item] = self._versions[item] = new
        number = self._model.write(self.name, _image(item, old), _image(item, new))
        assert number is not None, "each change has another version"
        key = self._key(self._streams[-1].holder({"S": item}).shard_id)
        if key not in self._truth.shards:
            self.poll()
        self._truth.record_written(key, int(number), now(), str(Change(item, old, new)), item)
        self._rules.written(item, self._truth.shards[key])

    def succeed(self) -> None:
        """Write until no shard has ended without a child."""
        for _ in range(_TRIES if self.is_on else 0):
            if all(shard.is_open for shard in _leaves(self._streams[-1])):
                return
            self.write(1)

    def reshape(self, what: Split | Roll) -> None:
        """An open shard ends; two follow, or one, perhaps only with its next change."""
        is_open = self._streams[-1].open_shards
        if not is_open:
            return
        chosen = is_open[what.rank % len(is_open)].shard_id
        if isinstance(what, Split):
            self._model.split(self.name, chosen)
        elif what.rank % 3:
            self._model.roll(self.name, chosen)
        else:
            self._model.end(self.name, chosen)
        self.poll()

    def poll(self) -> None:
        """Learn of new and closed shards."""
        if self.is_on:
            self._model.stream(self.name)  # rolls what is due
        is_open = frozenset(shard.shard_id for shard in self._streams[-1].open_shards)
        if is_open == self._seen and is_open:
            return
        self._seen = is_open
        for number, stream in enumerate(self._streams[-2:], max(0, len(self._streams) - 2)):
            for shard in stream.shards:
                self._learn(shard, number)

    def _learn(self, shard: Shard, number: int) -> None:
        key = self._key(shard.shard_id)
        if key not in self._truth.shards:
            parents: Sequence[str] = [shard.parent_id] if shard.parent_id else []
            if not parents and number and self._plan.follows:
                parents = [each.shard_id for each in _leaves(self._streams[number - 1])]
            self._truth.shard_created(key, tuple(map(self._key, parents)))
        if not shard.is_open and not self._truth.shards[key].is_closed:
            self._truth.shard_closed(key)

    def _key(self, shard_id: str) -> str:
        return self.prefix + shard_id

    def reading_begins(self, after: Sequence[str]) -> None:
        """What is closed now need not be read; what is open now comes after these."""
        for key, shard in self._truth.shards.items():
            if key.startswith(self.prefix) and not isinstance(shard, SegmentTruth):
                shard.is_past = shard.is_closed
                shard.parents = () if shard.is_closed else tuple(after)

    @property
    def live(self) -> tuple[int, int]:
        """How many shards are open, and how many a list shows."""
        known = [stream.shards for stream in self._streams]
        return len(self._seen), sum(map(len, known))

    def scan(self, segment: int, segments: int, after: str | None, limit: int) -> list[str]:
        """The next items of a segment, in the order of their hashes."""
        least = -1 if after is None else rank_of(after)
        found = [each for each in self.items if segment_of(each, segments) == segment and rank_of(each) > least]
        return sorted(found, key=rank_of)[:limit]


def _leaves(stream: Stream) -> list[Shard]:
    parents = {shard.parent_id for shard in stream.shards}
    return [shard for shard in stream.shards if shard.shard_id not in parents]


def _image(item: str, version: int | None) -> Item | None:
    return None if version is None else {ID: {"S": item}, VERSION: {"N": str(version)}}
