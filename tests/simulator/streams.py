"""Many streams of a run, which come and go.

Owns which of them are there now, and their producers. Knows nothing of readers.
"""

from __future__ import annotations

from typing import Final, assert_never

from kcl_local.kinesis.model import KinesisModel
from tests.simulator.chance import Chance
from tests.simulator.loop import now
from tests.simulator.plan import StreamAppears, StreamDisappears
from tests.simulator.stream import SimStream
from tests.simulator.truth import Truth

_DELETING_S: Final = 10.0


class SimStreams:
    """Streams by number. A stream that is deleted and created again is another one, from a later second on."""

    def __init__(self, model: KinesisModel, *, truth: Truth, chance: Chance, names: tuple[str, ...]) -> None:
        self._model = model
        self._truth = truth
        self._chance = chance
        self._names = names
        self._there: dict[int, SimStream] = {}
        self._gone_s: dict[int, float] = {}
        self._records_per_s = 0.0
        self._lives = 0

    def create(self, shards: int) -> None:
        """Every second one is there at the start."""
        for number in range(0, len(self._names), 2):
            self.appear(number, shards)

    def change(self, what: StreamAppears | StreamDisappears) -> None:
        """A stream comes or goes."""
        match what:
            case StreamAppears(number, shards):
                self.appear(number, shards)
            case StreamDisappears(number):
                self.disappear(number)
            case _:
                assert_never(what)

    def appear(self, number: int, shards: int) -> None:
        """Create one, unless it is there or has just gone: to delete a stream takes its time."""
        number %= len(self._names)
        if number in self._there or now() - self._gone_s.get(number, -_DELETING_S) < _DELETING_S:
            return
        self._lives += 1
        stream = SimStream(
            self._model,
            truth=self._truth,
            chance=self._chance.fork(f"life-{self._lives}"),
            name=self._names[number],
            one_of_many=True,
        )
        self._there[number] = stream
        stream.create(shards)
        stream.put(self._chance.between(0, 20))
        stream.produce(self._records_per_s)

    def disappear(self, number: int) -> None:
        """Delete one."""
        number %= len(self._names)
        stream = self._there.pop(number, None)
        if stream is not None:
            self._gone_s[number] = now()
            stream.delete()

    def put(self, count: int) -> None:
        """Write some records now, to all of them together."""
        for stream in self._there.values():
            stream.put(count // len(self._there))

    def produce(self, records_per_s: float) -> None:
        """Write at this rate from now on, to all names together."""
        self._records_per_s = records_per_s / len(self._names)
        for stream in self._there.values():
            stream.produce(self._records_per_s)

    def split(self, rank: int) -> None:
        """Split a shard of some stream."""
        self._some(rank).split(rank)

    def merge(self, rank: int) -> None:
        """Merge two shards of some stream."""
        self._some(rank).merge(rank)

    def _some(self, rank: int) -> SimStream:
        numbers = sorted(self._there)
        return self._there[numbers[rank % len(numbers)]]
