"""Shard iterators and page tokens: opaque text for callers, a position for the model. Knows no stream and no shard."""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import Final, cast

import orjson

from kcl_local.kinesis.errors import invalid_argument

_ITERATOR_TYPES: Final = (str, str, int, str, int, float)


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """A position in a shard.

    Args:
        stream_arn: where the shard is.
        stream_identity: `Stream.identity`, so that a new stream of the same name refuses it.
        shard_id: the shard.
        after_tick: every record above it is still to be read.
        issued_s: when it was made; it is good for a while only.
    """

    stream_arn: str
    stream_identity: int
    shard_id: str
    after_tick: int
    issued_s: float

    def encode(self) -> str:
        """As on the wire."""
        return _pack(
            [
                "iterator",
                self.stream_arn,
                self.stream_identity,
                self.shard_id,
                self.after_tick,
                self.issued_s,
            ]
        )

    @classmethod
    def decode(cls, text: str) -> ShardIterator:
        """Read what `encode` wrote; ServiceError `InvalidArgumentException` for anything else."""
        fields = _unpack(text)
        if (
            not isinstance(fields, list)
            or tuple(map(type, fields)) != _ITERATOR_TYPES
            or fields[0] != "iterator"
        ):
            raise invalid_argument("ShardIterator is not valid")
        _kind, arn, identity, shard_id, tick, issued_s = cast("tuple[str, str, int, str, int, float]", fields)
        return cls(arn, identity, shard_id, tick, issued_s)


@dataclass(frozen=True, slots=True)
class ShardPage:
    """Where ListShards goes on.

    Args:
        stream_arn: what is listed.
        stream_identity: `Stream.identity`.
        after_shard_id: the last shard given.
        issued_s: when it was made.
        shard_filter: the first call's ShardFilter.
    """

    stream_arn: str
    stream_identity: int
    after_shard_id: str
    issued_s: float
    shard_filter: dict[str, object] | None

    def encode(self) -> str:
        """As on the wire."""
        fields = [
            self.stream_arn,
            self.stream_identity,
            self.after_shard_id,
            self.issued_s,
            self.shard_filter,
        ]
        return _pack(["page", *fields])

    @classmethod
    def decode(cls, text: str) -> ShardPage:
        """Read what `encode` wrote; ServiceError `InvalidArgumentException` for anything else."""
        match _unpack(text):
            case [
                "page",
                str(arn),
                int(identity),
                str(shard_id),
                float() | int() as issued_s,
                None | dict() as kept,
            ]:
                shard_filter = cast("dict[str, object] | None", kept)
                return cls(arn, identity, shard_id, float(issued_s), shard_filter)
            case _:
                raise invalid_argument("NextToken is not valid")


@dataclass(frozen=True, slots=True)
class ConsumerPage:
    """Where ListStreamConsumers goes on.

    Args:
        stream_arn: whose consumers.
        stream_identity: `Stream.identity`.
        after_name: the last consumer given.
    """

    stream_arn: str
    stream_identity: int
    after_name: str

    def encode(self) -> str:
        """As on the wire."""
        return _pack(["consumers", self.stream_arn, self.stream_identity, self.after_name])

    @classmethod
    def decode(cls, text: str) -> ConsumerPage:
        """Read what `encode` wrote; ServiceError `InvalidArgumentException` for anything else."""
        match _unpack(text):
            case ["consumers", str(arn), int(identity), str(after_name)]:
                return cls(arn, identity, after_name)
            case _:
                raise invalid_argument("NextToken is not valid")


def _pack(fields: list[object]) -> str:
    return binascii.b2a_base64(orjson.dumps(fields), newline=False).decode("ascii")


def _unpack(text: str) -> object:
    try:
        return cast("object", orjson.loads(binascii.a2b_base64(text, strict_mode=True)))
    except (binascii.Error, ValueError):
        return None
