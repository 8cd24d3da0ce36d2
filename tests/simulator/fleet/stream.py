"""The stream of a run: its producers, its splits and merges.

Owns writing to the Kinesis model and keeps the truth up to date with it. Knows nothing of readers.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final, cast

from kcl_daemon.leases.row import Row
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.chance import Chance
from tests.simulator.loop import current_loop, now
from tests.simulator.rules.truth import Truth

STREAM_NAME: Final = "stream"
_BATCH_MOST: Final = 500
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
    ) -> None:
        self._epoch = epoch
        self._name = name
        self._one_of_many = one_of_many
        self._prefix = ""
        self._padding = b64encode(bytes(record_bytes)).decode()
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
            truth.was_done(done := self._chance.between(1, len(truth.numbers)) if truth.numbers else 0)
            rows.append(
                {
                    "leaseKey": truth.shard_id,
                    "streamName": self._prefix.removesuffix(":"),
                    "shardId": shard_id,
                    "leaseOwner": "java-of-the-past",
                    "leaseCounter": 7,
                    "ownerSwitchesSinceCheckpoint": 0,
                    "checkpoint": str(truth.numbers[done - 1]) if done else "TRIM_HORIZON",
                    "checkpointSubSequenceNumber": 0,
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
        entries: list[dict[str, str]] = []
        for _ in range(count):
            self._written += 1
            data = self._padding or b64encode(f"record {self._written}".encode()).decode()
            key = f"key-{self._chance.between(0, self._keys)}"
            entries.append({"Data": data, "PartitionKey": key, **self._explicit_hash()})
        answer = self._call("PutRecords", StreamName=self._name, Records=entries)
        for entry, written in zip(entries, _entries(answer, "Records"), strict=True):
            self._truth.record_written(
                self._prefix + written["ShardId"],
                int(written["SequenceNumber"]),
                now(),
                entry["Data"],
                entry["PartitionKey"],
            )

    def _explicit_hash(self) -> dict[str, str]:
        if self._skew == 0:
            return {}
        evenly = self._written * _GOLDEN % 1.0
        return {"ExplicitHashKey": str(int(evenly**self._skew * _HASHES))}

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
