"""What producers put into one record as the KPL does, and what a child must be given of it: KCL's rules, worked out once more.

Owns an encoder of its own, which also writes what the KPL would not. Knows nothing of the daemon's.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import md5
from typing import Final

from kcl_protocol.messages import Record
from tests.simulator.chance import Chance

_MAGIC: Final = b"\xf3\x89\x9a\xc2"
_TRIES: Final = 30
_LEFT_TO_OTHERS: Final = 0.4
_NO_HASHES: Final = (b"undefined", b"", b"-130", b"1" * 40)
_OTHER_KEY: Final = "a"
_NOWHERE: Final = 1 << 20

Range = tuple[int, int]
"""First and last hash of a shard."""


@dataclass(frozen=True, slots=True)
class AggregatesPlan:
    """How much of what is put are aggregates, and of what kind.

    Args:
        share: of the records put, how many are aggregates.
        most: user records in one.
        explicit: how often a user record has an explicit hash key.
        strays: how often an aggregate has records of other shards.
        odd: how often one is not as the KPL writes it.
        keyless: how often one has no partition key of its own; only a stream that chooses shards by itself takes that.
    """

    share: float = 0.5
    most: int = 12
    explicit: float = 0.2
    strays: float = 0.0
    odd: float = 0.0
    keyless: float = 0.0


class Odd(Enum):
    """What is not as the KPL writes it."""

    NO_HASH = auto()  # explicit hash keys that are no numbers, as the Node module aws-kinesis-agg writes them
    KEY_MISSING = auto()  # of a record that is not the first
    FIRST_KEY_MISSING = auto()
    WRONG_DIGEST = auto()
    TOO_SHORT = auto()
    NESTED = auto()  # an aggregate as the data of a user record
    EMPTY_DATA = auto()
    NO_RECORDS = auto()
    TAGGED = auto()


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One that children may be given.

    Args:
        sub_number: its place in the aggregate.
        key: its partition key; None: it has none.
        hash_key: which shard it belongs to; None: to the one that it is in.
    """

    sub_number: int
    key: str | None
    data: bytes
    hash_key: int | None


@dataclass(frozen=True, slots=True)
class Put:
    """One record of Kinesis, and the user records in it."""

    data: bytes
    key: str | None
    explicit: int | None
    found: Sequence[UserRecord]

    @property
    def entry(self) -> dict[str, str]:
        """As PutRecords takes it."""
        entry = {"Data": b64encode(self.data).decode()}
        if self.key is not None:
            entry["PartitionKey"] = self.key
        if self.explicit is not None:
            entry["ExplicitHashKey"] = str(self.explicit)
        return entry


def hash_of(key: str) -> int:
    """Where a partition key belongs."""
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest())


@dataclass(slots=True)
class _Filling:
    """One aggregate."""

    keys: list[bytes] = field(default_factory=list[bytes])
    hash_keys: list[bytes] = field(default_factory=list[bytes])
    records: list[bytes] = field(default_factory=list[bytes])

    def add(self, key: bytes | None, hash_key: bytes | None, data: bytes, *, is_tagged: bool = False) -> None:
        """Add a record; a key that is None is not in the table."""
        body = b"\x08" + _number(_NOWHERE if key is None else _index(self.keys, key))
        if hash_key is not None:
            body += b"\x10" + _number(_index(self.hash_keys, hash_key))
        body += b"\x1a" + _sized(data) + (b"\x22\x04\x0a\x02hi" if is_tagged else b"")
        self.records.append(b"\x1a" + _sized(body))

    def sealed(self) -> bytes:
        """The data of a record of Kinesis."""
        tables = (
            (b"\x0a" + _sized(key) for key in self.keys),
            (b"\x12" + _sized(key) for key in self.hash_keys),
        )
        message = b"".join((*tables[0], *tables[1], *self.records))
        return _MAGIC + message + md5(message, usedforsecurity=False).digest()


def _index(table: list[bytes], value: bytes) -> int:
    if value not in table:
        table.append(value)
    return table.index(value)


def _sized(value: bytes) -> bytes:
    return _number(len(value)) + value


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


class Aggregator:
    """Puts texts together.

    Args:
        text: the next one.
        key: draws a partition key.
        chosen: the hash that the next record is put with, where it is not that of its key.
    """

    def __init__(
        self,
        plan: AggregatesPlan,
        chance: Chance,
        *,
        text: Callable[[], bytes],
        key: Callable[[], str],
        chosen: Callable[[], int | None],
    ) -> None:
        self._plan = plan
        self._chance = chance
        self._text = text
        self._key = key
        self._chosen = chosen

    def puts(self, count: int, shards: Sequence[Range]) -> Iterator[Put]:
        """Records of Kinesis with so many texts."""
        chance = self._chance
        while count:
            size = 0
            if chance.happens(self._plan.share):
                size = min(count, chance.between(1, chance.pick((3, self._plan.most))))
            texts = [self._text() for _ in range(max(size, 1))]
            yield self._aggregate(texts, shards) if size else self._plain(texts[0])
            count -= len(texts)

    def _plain(self, text: bytes) -> Put:
        key, explicit = self._own_key(self._key()), self._chosen()
        return Put(text, key, None if key is None else explicit, (UserRecord(0, key, text, None),))

    def _own_key(self, key: str) -> str | None:
        return None if self._chance.happens(self._plan.keyless) else key

    def _aggregate(self, texts: Sequence[bytes], shards: Sequence[Range]) -> Put:
        chance, plan = self._chance, self._plan
        first, explicit = self._key(), self._chosen()
        target = hash_of(first) if explicit is None else explicit
        home = next((each for each in shards if each[0] <= target <= each[1]), shards[0])
        odd = chance.pick(tuple(Odd)) if chance.happens(plan.odd) else None
        key = self._own_key(first if explicit is None and chance.happens(0.7) else _OTHER_KEY)
        has_strays = chance.happens(plan.strays)
        filling, found = _Filling(), list[UserRecord]()
        for sub_number, text in enumerate(texts):
            near = None if has_strays and chance.happens(_LEFT_TO_OTHERS) else home
            given = (first, None) if not sub_number and explicit is None else self._placed(near)
            found.append(self._added(filling, UserRecord(sub_number, given[0], text, given[1]), odd, key))
        data = filling.sealed()
        if odd is Odd.NO_RECORDS:
            data, found = _Filling([b"a key"]).sealed(), []
        elif odd in {Odd.FIRST_KEY_MISSING, Odd.WRONG_DIGEST, Odd.TOO_SHORT}:
            data = _spoilt(data, odd)
            found = [UserRecord(0, key, data, None)]
        return Put(data, key, None if key is None else target, found)

    def _placed(self, home: Range | None) -> tuple[str, int | None]:
        """A partition key, and an explicit hash where it needs one to be in that range; None: anywhere."""
        if home is None:
            return self._key(), None
        if not self._chance.happens(self._plan.explicit):
            for _ in range(_TRIES):
                key = self._key()
                if home[0] <= hash_of(key) <= home[1]:
                    return key, None
        return self._key(), self._within(home)

    def _within(self, home: Range) -> int:
        return min(home[1], home[0] + int(self._chance.random() * (home[1] - home[0] + 1)))

    def _added(
        self, filling: _Filling, wanted: UserRecord, odd: Odd | None, outer_key: str | None
    ) -> UserRecord:
        """Add a record; as it comes out."""
        assert wanted.key is not None, "the KPL needs one"
        key, text, hash_key, number = wanted.key, wanted.data, wanted.hash_key, wanted.sub_number
        written = None if hash_key is None else str(hash_key).encode()
        if odd is not None and self._chance.happens(0.5):
            if odd is Odd.NO_HASH:
                written, hash_key = self._chance.pick(_NO_HASHES), None
            elif odd is Odd.NESTED:
                inner = _Filling()
                inner.add(b"inner", None, text)
                text = inner.sealed()
            elif odd is Odd.EMPTY_DATA:
                text = b""
            elif odd is Odd.KEY_MISSING and number:
                filling.add(None, written, text)
                return UserRecord(number, outer_key, text, None)
        is_missing = odd is Odd.FIRST_KEY_MISSING and not number
        filling.add(None if is_missing else key.encode(), written, text, is_tagged=odd is Odd.TAGGED)
        return UserRecord(number, key, text, hash_of(key) if hash_key is None else hash_key)


def _spoilt(data: bytes, odd: Odd) -> bytes:
    match odd:
        case Odd.WRONG_DIGEST:
            return data[:-1] + bytes((data[-1] ^ 1,))
        case Odd.TOO_SHORT:
            return data[:12]
        case _:
            return data


def opened(record: Record) -> list[Record]:
    """As KCL takes apart what the KPL has put together for this shard; anything else stays as it is."""
    body = b64decode(record.data)
    if not body.startswith(_MAGIC):
        return [record]
    keys, found = list[str](), list[Record]()
    for tag, value in _fields(body[len(_MAGIC) : -16]):
        assert isinstance(value, bytes), "the message has nothing else"
        if tag == 0x0A:
            keys.append(value.decode())
        elif tag == 0x1A:
            parts = dict(_fields(value))
            index, data = parts[0x08], parts[0x1A]
            assert isinstance(index, int), "as it is written"
            assert isinstance(data, bytes), "as it is written"
            text = b64encode(data).decode()
            found.append(
                replace(record, data=text, partition_key=keys[index], sub_sequence_number=len(found))
            )
    return found


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Tags, each with its bytes or its number."""
    at = 0
    while at < len(message):
        tag, (value, at) = message[at], _read_number(message, at + 1)
        if tag & 7 == 2:
            yield tag, message[at : at + value]
            at += value
        else:
            yield tag, value


def _read_number(message: bytes, at: int) -> tuple[int, int]:
    """And where it ends."""
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
            return value, at
