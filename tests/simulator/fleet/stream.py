"""The stream of a run: its producers, its splits and merges.

Owns writing to the Kinesis model and keeps the truth up to date with it. Knows nothing of readers.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final, cast

from kcl_daemon.leases.row import Row
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import stream_arn
from tests.simulator.chance import Chance
from tests.simulator.fleet.aggregates import AggregatesPlan, Aggregator, Put, Range, UserRecord
from tests.simulator.loop import current_loop, now
from tests.simulator.rules.truth import Truth

STREAM_NAME: Final = "stream"
_BATCH_MOST: Final = 500
_SHARDS_MOST: Final = 12
_TICK_S: Final = 0.5
_HASHES: Final = 1 << 128
_GOLDEN: Final = 0.6180339887498949
_PARENTS: Final = ("ParentShardId", "AdjacentParentShardId")


class SimStream:
    """One stream with its producers.

    Args:
        record_bytes: size of a record's data; 0: a few bytes.
        skew: 0: to shards as chance will have it; else evenly spread values to this power are the hashes.
        keys: how many partition keys there are.
        name: its name.
        one_of_many: its shards are known by their lease keys.
        epoch: what stands in these keys; None: when the stream was created.
        aggregates: what of it is put together; None: nothing.
        chooses_shards: the service puts records where it likes, whatever their keys are.
        keeps_others: children are given the user records of other shards.
    """

    def __init__(
        self,
        model: KinesisModel,
        *,
        truth: Truth,
        chance: Chance,
        record_bytes: int = 0,
        skew: float = 0.0,
        keys: int = 1 << 40,
        name: str = STREAM_NAME,
        one_of_many: bool = False,
        epoch: int | None = None,
        aggregates: AggregatesPlan | None = None,
        chooses_shards: bool = False,
        keeps_others: bool = False,
    ) -> None:
        self._epoch = epoch
        self._aggregator = None if aggregates is None else self._putting_together(aggregates, chance)
        self._chooses_shards = chooses_shards
        self._keeps_others = keeps_others or chooses_shards
        self._name = name
        self._one_of_many = one_of_many
        self._prefix = ""
        self._padding = bytes(record_bytes)
        self._skew = skew
        self._keys = keys
        self._model = model
        self._truth = truth
        self._chance = chance
        self._records_per_s = 0.0
        self._owed = 0.0
        self._written = 0

    def create(self, shards: int) -> None:
        """Create it."""
        self._call("CreateStream", StreamName=self._name, ShardCount=shards)
        if self._chooses_shards:
            arn = stream_arn(self._name)
            self._call("UpdateStreamMode", StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
            auto = {"RecordDistributionStrategy": "AUTO"}
            self._call("UpdateStreamRecordDistributionStrategy", StreamARN=arn, **auto)
        if self._one_of_many:
            self._prefix = f"{self._account_and_epoch()}:"
        self._poll()

    def delete(self) -> None:
        """Delete it, with all that is in it."""
        self._call("DeleteStream", StreamName=self._name, EnforceConsumerDeletion=True)
        self.produce(0)
        self._truth.stream_deleted(self._prefix, now())

    def _account_and_epoch(self) -> str:
        answer = self._call("DescribeStreamSummary", StreamName=self._name)
        summary = cast("dict[str, Any]", answer["StreamDescriptionSummary"])
        account = str(summary["StreamARN"]).split(":")[4]
        return f"{account}:{self._name}:{self._epoch or int(summary['StreamCreationTimestamp'])}"

    def left_leases(self) -> list[Row]:
        """Lease rows as a Java program of many streams leaves them that has read a part of each open shard."""
        rows: list[Row] = []
        for low, high, shard_id in self._open():
            truth = self._truth.shards[self._prefix + shard_id]
            truth.was_done(done := self._chance.between(1, len(truth.positions)) if truth.positions else 0)
            number, sub_number = truth.positions[done - 1] if done else ("TRIM_HORIZON", 0)
            rows.append(
                {
                    "leaseKey": truth.shard_id,
                    "streamName": self._prefix.removesuffix(":"),
                    "shardId": shard_id,
                    "leaseOwner": "java-of-the-past",
                    "leaseCounter": 7,
                    "ownerSwitchesSinceCheckpoint": 0,
                    "checkpoint": str(number),
                    "checkpointSubSequenceNumber": sub_number,
                    "startingHashKey": str(low),
                    "endingHashKey": str(high),
                }
            )
        return rows

    def produce(self, records_per_s: float) -> None:
        """Write at this rate from now on; 0: stop."""
        is_running = self._records_per_s > 0
        self._records_per_s = records_per_s
        if records_per_s > 0 and not is_running:
            current_loop().after(_TICK_S, self._tick)

    def put(self, count: int) -> None:
        """Write some records now."""
        for start in range(0, count, _BATCH_MOST):
            self._put(min(_BATCH_MOST, count - start))

    def split(self, rank: int) -> None:
        """Split an open shard in two halves; the largest ones by rank."""
        low, high, shard_id = self._open()[rank % len(self._open())]
        if high - low < 16:
            return
        middle = low + (high - low) // 2 + self._chance.between(0, 3)
        self._call("SplitShard", StreamName=self._name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self._poll()

    def merge(self, rank: int) -> None:
        """Merge an open shard with its right neighbour."""
        shards = self._open()
        if len(shards) < 2:
            return
        left = rank % (len(shards) - 1)
        self._call(
            "MergeShards",
            StreamName=self._name,
            ShardToMerge=shards[left][2],
            AdjacentShardToMerge=shards[left + 1][2],
        )
        self._poll()

    def scale(self, up: bool) -> None:
        """The service doubles or halves the open shards, all at once."""
        count = len(self._open())
        wanted = min(2 * count, _SHARDS_MOST) if up else max(1, (count + 1) // 2)
        if wanted != count:
            self._call(
                "UpdateShardCount",
                StreamName=self._name,
                TargetShardCount=wanted,
                ScalingType="UNIFORM_SCALING",
            )
            self._poll()

    def _tick(self) -> None:
        if self._records_per_s <= 0:
            return
        self._owed += self._records_per_s * _TICK_S
        count = int(self._owed)
        self._owed -= count
        if count:
            self.put(count)
        current_loop().after(_TICK_S, self._tick)

    def _put(self, count: int) -> None:
        ranges = {shard_id: (low, high) for low, high, shard_id in self._open()} if self._aggregator else {}
        puts = [*self._puts(count, [*ranges.values()])]
        answer = self._call("PutRecords", StreamName=self._name, Records=[put.entry for put in puts])
        for put, written in zip(puts, _entries(answer, "Records"), strict=True):
            for user_record in put.found:
                self._truth.record_written(
                    self._prefix + written["ShardId"],
                    int(written["SequenceNumber"]),
                    now(),
                    b64encode(user_record.data).decode(),
                    user_record.key,
                    sub_number=user_record.sub_number,
                    is_stray=self._is_stray(user_record, ranges.get(written["ShardId"])),
                )

    def _puts(self, count: int, ranges: list[Range]) -> Iterator[Put]:
        if self._aggregator is not None:
            yield from self._aggregator.puts(count, ranges)
            return
        for _ in range(count):
            text = self._text()
            key = self._key()
            yield Put(text, key, self._explicit_hash(), (UserRecord(0, key, text, None),))

    def _text(self) -> bytes:
        self._written += 1
        return self._padding or f"record {self._written}".encode()

    def _key(self) -> str:
        return f"key-{self._chance.between(0, self._keys)}"

    def _is_stray(self, user_record: UserRecord, home: Range | None) -> bool:
        if self._keeps_others or home is None or user_record.hash_key is None:
            return False
        return not home[0] <= user_record.hash_key <= home[1]

    def _putting_together(self, plan: AggregatesPlan, chance: Chance) -> Aggregator:
        fork = chance.fork("aggregates")
        return Aggregator(plan, fork, text=self._text, key=self._key, chosen=self._explicit_hash)

    def _explicit_hash(self) -> int | None:
        if self._skew == 0:
            return None
        evenly = self._written * _GOLDEN % 1.0
        return int(evenly**self._skew * _HASHES)

    def _shards(self) -> list[dict[str, Any]]:
        return _entries(self._call("ListShards", StreamName=self._name), "Shards")

    def _open(self) -> list[tuple[int, int, str]]:
        """Open shards as (first hash, last hash, shard id), by hash."""
        return sorted(
            (int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]), shard["ShardId"])
            for shard in self._shards()
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        )  # fmt: skip

    def _poll(self) -> None:
        """Learn of new and closed shards."""
        for shard in self._shards():
            key = self._prefix + str(shard["ShardId"])
            parents = tuple(self._prefix + str(shard[name]) for name in _PARENTS if name in shard)
            self._truth.shard_created(key, parents)
            if "EndingSequenceNumber" in shard["SequenceNumberRange"]:
                self._truth.shard_closed(key)

    def _call(self, operation: str, **arguments: object) -> dict[str, object]:
        return self._model.handle(operation, arguments)


def _entries(answer: dict[str, object], name: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", answer[name])
