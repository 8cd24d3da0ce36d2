"""The DynamoDB tables of a run: their writers, and their streams, which roll, split, end, are switched off and on again.

Owns writing to the model and keeps the truth up to date with it. Knows nothing of readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from kcl_daemon.config.streams import ListedStream
from kcl_daemon.transport.pool import Parameters
from kcl_local import REGION
from kcl_local.changes.model import StreamsModel
from kcl_local.changes.stream import Item, Shard, Stream, StreamsOptions, label_of
from kcl_local.kinesis.stream import ACCOUNT_ID
from kcl_protocol.messages import Record
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.ports import RowWrite
from tests.simulator.fleet.streams import SimStreams
from tests.simulator.loop import current_loop, now
from tests.simulator.plans.plan import ChangesPlan, Roll, Split, SwitchStream
from tests.simulator.rules.deliveries import Deliveries, Incarnation
from tests.simulator.rules.items import ID, VERSION, Change, ItemRules, change_of, key_of
from tests.simulator.rules.rows import LeaseTableRules
from tests.simulator.rules.segments import Segments, SegmentTruth, rank_of, segment_of
from tests.simulator.rules.truth import Position, ShardTruth, Truth, position_of
from tests.simulator.trace import Trace
from tests.simulator.violation import report

_TICK_S: Final = 0.5
_DELETED: Final = 0.15
_TRIES: Final = 300
_LEASES_MOST: Final = 3
# A finished lease waits half a minute after the leader has seen its end, then for its next look, then behind hundreds of others.
_JUST_NOW_S: Final = 90.0
# How old the items of a scan may be.
_STALE_S: Final = 2.0


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
        segments: Segments,
        chance: Chance,
        one_of_many: bool,
    ) -> None:
        self.name = name
        self._model = model
        self._plan = plan
        self._truth = truth
        self._rules = rules
        self._segments = segments
        self._chance = chance
        self._one_of_many = one_of_many
        self._streams: list[Stream] = []
        self._seen: frozenset[str] = frozenset()
        self._versions: dict[str, int] = {}
        self.items: dict[str, int] = {}
        self._born_s: dict[str, float] = {}
        self._history: dict[str, list[tuple[float, int | None]]] = {}
        self.prefix = ""
        self.is_read = False

    @property
    def arn(self) -> str:
        """Of its first stream."""
        return self._streams[0].arn

    @property
    def arn_of_table(self) -> str:
        """Without what tells its streams apart."""
        return self.arn.partition("/stream/")[0] + "/"

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
                self.prefix = f"{account}:{name_in_keys(self.name)}:1:"
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
        self._history.setdefault(item, []).append((now(), new))
        if old is None:
            self._born_s[item] = now()
        number = self._model.write(self.name, _image(item, old), _image(item, new))
        assert number is not None, "each change has another version"
        key = self._key(self._streams[-1].holder({"S": item}).shard_id)
        if key not in self._truth.shards:
            self.poll()
        self._truth.record_written(
            key, int(number), now(), _text(Change(item, old, new), key_of(item)), key_of(item)
        )
        self._rules.written(item, self._truth.shards[key])
        if new is None:
            self._segments.item_deleted(self.prefix, item)

    def succeed(self) -> None:
        """Write until no shard has ended without a child."""
        for _ in range(_TRIES if self.is_on else 0):
            if all(shard.is_open for shard in _leaves(self._streams[-1])):
                return
            self.write(1)

    def reshape(self, what: Split | Roll) -> None:
        """An open shard ends; two follow, or one, perhaps only with its next change."""
        self.poll()
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
            shards = stream.shards
            parents = {shard.parent_id for shard in shards}
            for shard in shards:
                # Without a child it has no end yet, unless the stream has one.
                has_end = shard.shard_id in parents or stream.disabled_s is not None
                self._learn(shard, number, has_end=has_end)

    def _learn(self, shard: Shard, number: int, *, has_end: bool) -> None:
        key = self._key(shard.shard_id)
        if key not in self._truth.shards:
            parents: Sequence[str] = [shard.parent_id] if shard.parent_id else []
            if not parents and number and self._plan.follows:
                parents = [each.shard_id for each in _leaves(self._streams[number - 1])]
            self._truth.shard_created(key, tuple(map(self._key, parents)))
            self._truth.shards[key].dates_whole = True
        if has_end and not shard.is_open and not self._truth.shards[key].is_closed:
            self._truth.shard_closed(key, now())

    def _key(self, shard_id: str) -> str:
        return self.prefix + shard_id

    def reading_begins(self, after: Sequence[str]) -> None:
        """What is closed now need not be read; all that is there comes after these."""
        for key, shard in self._truth.shards.items():
            if key.startswith(self.prefix) and not isinstance(shard, SegmentTruth):
                shard.is_past, shard.after = shard.is_closed, tuple(after)

    @property
    def live(self) -> tuple[int, int]:
        """How many shards are open, and how many a list shows."""
        known = [stream.shards for stream in self._streams]
        return len(self._seen), sum(map(len, known))

    def lose(self, checkpoint_of: Callable[[str], ExtendedSequenceNumber | None]) -> set[str]:
        """Forget what the streams do not keep any more; the shards that must say so, as they were read before."""
        oldest_s, owed = now() - self._plan.kept_s, set[str]()
        listed = {self._key(shard.shard_id) for stream in self._streams for shard in stream.shards}
        for key in [key for key in self._truth.shards if key.startswith(self.prefix)]:
            shard, stored = self._truth.shards[key], checkpoint_of(key)
            lost = shard.lose_before(oldest_s)
            is_gone = key not in listed and shard.is_closed
            if stored is None:
                shard.is_past |= is_gone
                continue
            begun = None if stored.is_sentinel else shard.index[position_of(stored)]
            if begun is not None and lost:
                owed.add(key)
            is_behind = begun is not None and shard.written_at_s[begun] <= oldest_s
            if not self._plan.continues_trimmed and (is_behind or (is_gone and not stored.is_shard_end)):
                self._truth.stop(shard)
        return owed

    @property
    def settled(self) -> list[str]:
        """Items that every scan from now on finds."""
        return [
            item
            for item in self.items
            if self._born_s[item] < now() - _STALE_S and self._truth.is_kept(key_of(item))
        ]

    def described(self) -> dict[str, object]:
        """As DescribeTable says it."""
        schema = [{"AttributeName": ID, "KeyType": "HASH"}]
        return {
            "TableName": self.name,
            "KeySchema": schema,
            "ItemCount": len(self.items),
            "TableSizeBytes": 0,
        }

    def scanned(self, part: tuple[int, int], after: str | None, limit: int) -> dict[str, object]:
        """The next items of a segment, in the order of their hashes, as they were a moment ago."""
        at_s = now() - self._chance.uniform(0.0, _STALE_S)
        least = -1 if after is None else rank_of(after)
        found = sorted(
            (
                each
                for each in self._history
                if segment_of(each, part[1]) == part[0] and rank_of(each) > least
            ),
            key=rank_of,
        )
        images = [
            image for each in found if (image := _image(each, self._version_at(each, at_s))) is not None
        ]
        page = images[:limit]
        last = {"LastEvaluatedKey": {ID: page[-1][ID]}} if len(images) >= limit else {}
        return {"Items": page, "ConsumedCapacity": {"CapacityUnits": float(len(page))}, **last}

    def _version_at(self, item: str, at_s: float) -> int | None:
        return next((version for since_s, version in reversed(self._history[item]) if since_s <= at_s), None)


def _leaves(stream: Stream) -> list[Shard]:
    parents = {shard.parent_id for shard in stream.shards}
    return [shard for shard in stream.shards if shard.shard_id not in parents]


def _image(item: str, version: int | None) -> Item | None:
    return None if version is None else {ID: {"S": item}, VERSION: {"N": str(version)}}


def _text(change: Change, key: str) -> str:
    return f"{change} {key}"


class _Scan(msgspec.Struct):
    Segment: int
    TotalSegments: int
    Limit: int
    ExclusiveStartKey: dict[str, dict[str, str]] | None = None


class ChangedTables:
    """All tables of a run, beside streams of Kinesis if there are any."""

    def __init__(
        self, plan: ChangesPlan, *, truth: Truth, chance: Chance, kinesis: SimStreams | None, latest: bool
    ) -> None:
        self._plan = plan
        self._truth = truth
        self._chance = chance
        self.kinesis = kinesis
        self._latest = latest
        self._records_per_s = self._owed = 0.0
        self._rules = ItemRules()
        self._segments = Segments(lambda segment: truth.shards.setdefault(segment.shard_id, segment))
        self._must_say: set[str] = set()
        self._rows: LeaseTableRules | None = None
        self._trace: Trace | None = None
        self.ratio_most = 0.0
        self._ended_s: dict[str, float] = {}
        late_s = plan.late_s
        options = StreamsOptions(
            shard_life_s=plan.life_s,
            retention_s=plan.kept_s,
            closing_lag_s=late_s * chance.random(),
            children_lag_s=late_s * chance.random(),
            empty_every=plan.empty_every,
            iterator_ttl_s=chance.pick((900.0, 900.0, 20.0)),
        )
        self.model = StreamsModel(lambda: EPOCH_S + now(), options)
        self.tables = [
            ChangedTable(
                self.model,
                f"table-{number}",
                plan=plan,
                truth=truth,
                rules=self._rules,
                segments=self._segments,
                chance=chance.fork(f"table-{number}"),
                one_of_many=kinesis is not None or plan.tables > 1,
            )
            for number in range(plan.tables)
        ]

    def create(self, shards: int) -> None:
        """Create them, and the streams of Kinesis."""
        for table in self.tables:
            table.switch_on(shards)
            assert table.arn == arn_of(table.name), "the settings have this ARN"
        if self.kinesis is not None:
            self.kinesis.create(shards)

    def put(self, count: int) -> None:
        """Write some changes now, and as many records."""
        for table in self.tables:
            table.write(count // len(self.tables))
        if self.kinesis is not None:
            self.kinesis.put(count)

    def produce(self, records_per_s: float) -> None:
        """Write at this rate from now on; 0: stop, with no shard that waits for a change."""
        is_running = self._records_per_s > 0
        self._records_per_s = records_per_s
        if records_per_s == 0:
            for table in self.tables:
                table.succeed()
        elif not is_running:
            current_loop().after(_TICK_S, self._tick)
        if self.kinesis is not None:
            self.kinesis.produce(records_per_s)

    def _tick(self) -> None:
        self._owed += self._records_per_s * _TICK_S
        for _ in range(int(self._owed)):
            self._chance.pick(self.tables).write(1)
        self._owed %= 1
        for table in self.tables:
            table.poll()
        current_loop().after(_TICK_S, self._tick)

    def split(self, rank: int) -> None:
        """Split a shard of some table, or of Kinesis."""
        if self.kinesis is not None and rank % 4 == 0:
            self.kinesis.split(rank)
        else:
            self.change(Split(rank))

    def merge(self, rank: int) -> None:
        """Only Kinesis does that."""
        if self.kinesis is not None:
            self.kinesis.merge(rank)

    def change(self, what: Split | Roll | SwitchStream) -> None:
        """Something happens to a table's stream."""
        if isinstance(what, SwitchStream):
            table = self.tables[what.table % len(self.tables)]
            table.switch_on(self._chance.between(1, 3)) if what.on else table.switch_off()
        else:
            self._chance.pick(self.tables).reshape(what)

    def answer(self, operation: str, parameters: Parameters) -> bytes:
        """As the model. Who begins at the latest change need not get what was there before."""
        answer = self.model.answer(operation, parameters)
        for table in self.tables:
            table.poll()  # what has rolled just now
            if not self._plan.is_whole and self._rows is not None:
                self._must_say |= table.lose(self._rows.checkpoint_of)
        if parameters.get("ShardIteratorType") == "LATEST":
            shard = self._truth.shards[self.key_of(parameters)]
            shard.excuse_before(len(shard.positions))
        return answer

    def key_of(self, parameters: Parameters) -> str:
        """The lease key of the shard that a call names."""
        arn = str(parameters["StreamArn"])
        table = next(each for each in self.tables if arn.startswith(each.arn_of_table))
        return f"{table.prefix}{parameters['ShardId']}"

    def answer_of_table(self, operation: str, parameters: Parameters) -> bytes:
        """As DynamoDB, of the tables themselves."""
        table = next(
            each for each in self.tables if parameters["TableName"] in {each.name, each.arn_of_table[:-1]}
        )
        if operation == "DescribeTable":
            return json.dumps({"Table": table.described()}).encode()
        assert operation == "Scan", f"nobody needs {operation}"
        asked = msgspec.convert(msgspec.json.decode(msgspec.json.encode(parameters)), _Scan)
        after = None if asked.ExclusiveStartKey is None else asked.ExclusiveStartKey[ID]["S"]
        part = asked.Segment, asked.TotalSegments
        return json.dumps(table.scanned(part, after, asked.Limit)).encode()

    def _of(self, key: str) -> ChangedTable | None:
        return next((table for table in self.tables if key.startswith(table.prefix)), None)

    def watch(self, deliveries: Deliveries, rows: LeaseTableRules, trace: Trace) -> None:
        """Have all that is delivered looked at."""
        self._rows, self._trace = rows, trace
        deliveries.text_of, deliveries.on_record = self._text_of, self._given
        deliveries.take_segment, deliveries.take_letter = self._take_segment, self._take_letter

    def _text_of(self, shard_id: str, record: Record) -> str:
        return (
            record.data
            if self._of(shard_id) is None
            else _text(change_of(record), record.partition_key or "")
        )

    def _given(self, child: Incarnation, shard: ShardTruth, place: int, record: Record) -> None:
        if self._of(shard.shard_id) is not None:
            self._rules.delivered(child, shard, place, change_of(record))

    def _take_segment(self, child: Incarnation, shard: ShardTruth, records: Sequence[Record]) -> bool:
        if isinstance(shard, SegmentTruth):
            for change in shard.take(child, records):
                self._rules.scanned(change)
            return True
        if shard.lost and records and child.reported is not None and not child.reported.is_sentinel:
            self._look_at_lost(child, shard, position_of(records[0]))
        return False

    def _take_letter(self, shard_id: str, record: Record, is_reject: bool) -> bool:
        """What is a letter is taken as if it were in the copy; what was rejected is in it since it was given."""
        keys = [
            key
            for key in self._truth.shards
            if key.rpartition(":")[2] == shard_id and self._of(key) is not None
        ]
        if not keys:
            return False
        change = change_of(record)
        if not is_reject:
            at = position_of(record)
            shards = (self._truth.shards[key] for key in keys)
            self._rules.set_aside(next((each for each in shards if at in each.index), None), at, change)
        segments = [shard for key in keys if isinstance(shard := self._truth.shards[key], SegmentTruth)]
        for segment in segments:
            segment.ranks[position_of(record)] = rank_of(change.item)
            segment.left.discard(change.item)
            segment.steady.discard(change.item)
        return bool(segments)

    def _look_at_lost(self, child: Incarnation, shard: ShardTruth, first: Position) -> None:
        """What is lost is never passed over in silence, nor at all where the shard is to stop."""
        passed = [
            place
            for place in sorted(shard.lost)
            if shard.positions[place] < first
            and not shard.deliveries[place]
            and place >= (child.next_place or 0)
        ]
        if passed and not self._plan.continues_trimmed:
            report("trimmed_passed_over", f"{child} reads on after {len(passed)} changes that were lost")
        if passed and self._trace is not None and shard.shard_id not in self._trace.losses:
            report(
                "trimmed_in_silence", f"{child} reads on after {len(passed)} lost changes, nothing was logged"
            )

    def lease_written(self, write: RowWrite, leases: int) -> None:
        """A lease row was written; there are so many now. One that ended just now may not be deleted yet."""
        table = self._of(write.key)
        if write.after is None:
            self._ended_s.pop(write.key, None)
        elif write.after.get("checkpoint") == SHARD_END.sequence_number:
            self._ended_s.setdefault(write.key, now())
        if table is None or write.before is not None or write.after is None:
            return
        if self._segments.lease_created(write.key, table.settled, now()):
            table.reading_begins(_all_segments(write.key))
        elif self._latest and not table.is_read:
            table.reading_begins(())
        table.is_read = True
        for name, value in (("startingHashKey", "0"), ("endingHashKey", "1")):
            if write.after.get(name) != value:
                report("other_hash_range", f"{write.key} was made with {name} = {write.after.get(name)!r}")
        is_open, listed = (sum(each) for each in zip(*(table.live for table in self.tables), strict=True))
        segments = sum(len(self._segments.of(table.prefix)) for table in self.tables)
        live = (is_open if self._plan.open_most else listed) + segments
        leases -= sum(now() - ended_s < _JUST_NOW_S for ended_s in self._ended_s.values())
        self.ratio_most = max(self.ratio_most, leases / live)
        if leases > _LEASES_MOST * live:
            report("lease_table_large", f"{leases} leases for {live} live shards")

    @property
    def given(self) -> dict[str, int]:
        """What children were given, by kind."""
        return {"item scanned": self._rules.scans, "change delivered": self._rules.changes}

    def judge(self) -> None:
        """The copy that was made of what was delivered is the table; what was lost was said."""
        for key in sorted(self._must_say):
            shard = self._truth.shards[key]
            is_lost = any(not shard.deliveries[place] for place in shard.lost)
            told = set[str]() if self._trace is None else self._trace.losses.get(key, set())
            if is_lost and ("warning" if self._plan.continues_trimmed else "error") not in told:
                report("trimmed_in_silence", f"{key} has lost changes, of which it was said: {sorted(told)}")
        if not self._plan.is_copied:
            return
        copy = {item: version for item, version in self._rules.copy.items() if version is not None}
        for table in self.tables:
            for item in sorted(
                table.items.keys() | {each for each in copy if each.startswith(f"{table.name}/")}
            ):
                if self._truth.is_kept(key_of(item)) and copy.get(item) != table.items.get(item):
                    report("other_copy", f"{item} is {table.items.get(item)}, the copy has {copy.get(item)}")


def _all_segments(key: str) -> list[str]:
    begin, _, count = key.rpartition("-")
    begin = begin.rpartition("-")[0]
    return [f"{begin}-{index:04}-{count}" for index in range(int(count))]


def arn_of(table: str) -> str:
    """Of the stream that a table has at the start of a run."""
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{table}/stream/{label_of(EPOCH_S)}"


def name_in_keys(table: str) -> str:
    """Of that stream, as the Java adapter 2.x writes it."""
    return f"{REGION}${ACCOUNT_ID}${table}${label_of(EPOCH_S).replace(':', '_')}"


def listed_tables(plan: ChangesPlan) -> tuple[ListedStream, ...]:
    """As one of many."""
    names = (f"table-{number}" for number in range(plan.tables))
    return tuple(ListedStream(name_in_keys(name), arn_of(name)) for name in names)
