"""Many streams of a run, which come and go.

Owns which of them are there now, and their producers. Knows nothing of readers.
"""

from __future__ import annotations

from typing import Final, assert_never

from kcl_daemon.leases.row import Row
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.fleet.aggregates import AggregatesPlan
from tests.simulator.fleet.stream import SimStream
from tests.simulator.loop import now
from tests.simulator.plans.plan import Epoch, StreamAppears, StreamDisappears
from tests.simulator.rules.truth import Truth

_DELETING_S: Final = 10.0


_MADE_UP: Final = 12345
# When a Java program of the past started; streams are as old as the run.
_STARTED_S: Final = int(EPOCH_S) + 86_400


def _in_keys(epoch: Epoch) -> int | None:
    """What stands in the lease keys; None: when the stream was created."""
    match epoch:
        case Epoch.NOBODY | Epoch.CREATED:
            return None
        case Epoch.ONE:
            return 1
        case Epoch.MADE_UP:
            return _MADE_UP
        case Epoch.STARTED:
            return _STARTED_S
        case Epoch.MILLISECONDS:
            return _STARTED_S * 1000
        case _:
            assert_never(epoch)


class SimStreams:
    """Streams by number. A stream that is deleted and created again is another one, from a later second on."""

    def __init__(
        self,
        model: KinesisModel,
        *,
        truth: Truth,
        chance: Chance,
        names: tuple[str, ...],
        epochs: tuple[Epoch, ...] = (),
        aggregates: AggregatesPlan | None = None,
        keeps_others: bool = False,
    ) -> None:
        self._aggregates = aggregates
        self._keeps_others = keeps_others
        self._epochs = epochs
        self._model = model
        self._truth = truth
        self._chance = chance
        self._names = names
        self._live_workers: dict[int, SimStream] = {}
        self._gone_s: dict[int, float] = {}
        self._records_per_s = 0.0
        self._lives = 0
        self._read_before: list[int] = []

    def create(self, shards: int) -> None:
        """Every second one is there at the start."""
        for number in range(0, len(self._names), 2):
            epoch = self._epochs[number] if self._epochs else Epoch.NOBODY
            self.appear(number, shards, _in_keys(epoch))
            if epoch is not Epoch.NOBODY:
                self._read_before.append(number)

    def left_leases(self) -> list[Row]:
        """The lease rows of those that a Java program has read before."""
        return [row for number in self._read_before for row in self._live_workers[number].left_leases()]

    def change(self, what: StreamAppears | StreamDisappears) -> None:
        """A stream comes or goes."""
        match what:
            case StreamAppears(number, shards):
                self.appear(number, shards)
            case StreamDisappears(number):
                self.disappear(number)
            case _:
                assert_never(what)

    def appear(self, number: int, shards: int, epoch: int | None = None) -> None:
        """Create one, unless it is there or has just gone: to delete a stream takes its time."""
        number %= len(self._names)
        if number in self._live_workers or now() - self._gone_s.get(number, -_DELETING_S) < _DELETING_S:
            return
        self._lives += 1
        stream = SimStream(
            self._model,
            truth=self._truth,
            chance=self._chance.fork(f"life-{self._lives}"),
            name=self._names[number],
            one_of_many=True,
            epoch=epoch,
            aggregates=self._aggregates,
            keeps_others=self._keeps_others,
        )
        self._live_workers[number] = stream
        stream.create(shards)
        stream.put(self._chance.between(0, 20))
        stream.produce(self._records_per_s)

    def disappear(self, number: int) -> None:
        """Delete one."""
        number %= len(self._names)
        stream = self._live_workers.pop(number, None)
        if stream is not None:
            self._gone_s[number] = now()
            stream.delete()

    def put(self, count: int) -> None:
        """Write some records now, to all of them together."""
        for stream in self._live_workers.values():
            stream.put(count // len(self._live_workers))

    def produce(self, records_per_s: float) -> None:
        """Write at this rate from now on, to all names together."""
        self._records_per_s = records_per_s / len(self._names)
        for stream in self._live_workers.values():
            stream.produce(self._records_per_s)

    def split(self, rank: int) -> None:
        """Split a shard of some stream."""
        self._some(rank).split(rank)

    def merge(self, rank: int) -> None:
        """Merge two shards of some stream."""
        self._some(rank).merge(rank)

    def scale(self, up: bool) -> None:
        """Some stream grows or shrinks."""
        self._some(len(self._live_workers)).scale(up)

    def _some(self, rank: int) -> SimStream:
        numbers = sorted(self._live_workers)
        return self._live_workers[numbers[rank % len(numbers)]]
