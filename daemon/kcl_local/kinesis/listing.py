"""ListShards: filters and pages. Knows no record."""

from __future__ import annotations

from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import ServiceError, invalid_argument, malformed
from kcl_local.kinesis.shard import Shard
from kcl_local.kinesis.stream import Stream
from kcl_local.kinesis.tokens import ShardPage

_PAGE: Final = 1000
_PAGE_MAX: Final = 10_000
_TOKEN_TTL_S: Final = 300.0
_NOT_WITH_TOKEN: Final = (
    "StreamName",
    "StreamARN",
    "StreamCreationTimestamp",
    "ExclusiveStartShardId",
    "ShardFilter",
)


def list_shards(account: Account, arguments: Arguments) -> Answer:
    """ListShards. A page token must come without the stream, the start and the filter of the first call."""
    page_size = arguments.optional_integer("MaxResults", 1, _PAGE_MAX) or _PAGE
    if arguments.has("NextToken"):
        stream, after, shard_filter = _resume(account, arguments)
    else:
        stream = account.active_stream(arguments)
        after = arguments.optional_text("ExclusiveStartShardId") or ""
        shard_filter = _read_filter(arguments.structure("ShardFilter"))
    shards = [shard for shard in _filtered(account, stream, shard_filter) if shard.shard_id > after]
    page = shards[:page_size]
    answer: Answer = {"Shards": [shard_entry(stream, shard) for shard in page]}
    if len(shards) > page_size:
        token = ShardPage(stream.arn, stream.identity, page[-1].shard_id, account.now_s, shard_filter)
        answer["NextToken"] = token.encode()
    return answer


def shard_entry(stream: Stream, shard: Shard) -> Answer:
    """`Shard` on the wire."""
    numbers: Answer = {"StartingSequenceNumber": stream.numbers.text(shard.opened_tick, shard.index)}
    if shard.closed_tick is not None:
        numbers["EndingSequenceNumber"] = stream.numbers.text(shard.closed_tick, shard.index)
    entry: Answer = {
        "ShardId": shard.shard_id,
        "HashKeyRange": shard.hash_range(),
        "SequenceNumberRange": numbers,
    }
    for name, parent_id in zip(("ParentShardId", "AdjacentParentShardId"), shard.parent_ids, strict=False):
        entry[name] = parent_id
    return entry


def _resume(account: Account, arguments: Arguments) -> tuple[Stream, str, Answer | None]:
    for name in _NOT_WITH_TOKEN:
        if arguments.has(name):
            raise invalid_argument(f"NextToken and {name} cannot be provided together.")
    token = ShardPage.decode(arguments.text("NextToken"))
    if account.now_s - token.issued_s >= _TOKEN_TTL_S:
        raise ServiceError("ExpiredNextTokenException", f"NextToken is older than {_TOKEN_TTL_S:g} s")
    stream = account.identified_stream(token.stream_arn, token.stream_identity)
    return stream, token.after_shard_id, token.shard_filter


def _read_filter(given: Arguments | None) -> Answer | None:
    """The filter, checked, in the form that a page token keeps."""
    if given is None:
        return None
    kind = given.text("Type")
    checked: Answer = {"Type": kind}
    if kind == "AFTER_SHARD_ID":
        checked["ShardId"] = given.optional_text("ShardId")
    elif kind in {"AT_TIMESTAMP", "FROM_TIMESTAMP"}:
        checked["Timestamp"] = given.optional_timestamp("Timestamp")
    elif kind not in {"AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST"}:
        raise malformed(f"ShardFilter.Type {kind!r:.80} is unknown")
    for name, value in checked.items():
        if value is None:
            raise invalid_argument(f"ShardFilter of type {kind} needs {name}")
    return checked


def _filtered(account: Account, stream: Stream, shard_filter: Answer | None) -> list[Shard]:
    match shard_filter:
        case {"Type": "AT_LATEST"}:
            return [shard for shard in stream.shards if shard.is_open]
        case {"Type": "AFTER_SHARD_ID", "ShardId": str(shard_id)}:
            return [shard for shard in stream.shards if shard.shard_id > shard_id]
        case {"Type": "AT_TRIM_HORIZON"}:
            return _oldest(stream)
        case {"Type": "AT_TIMESTAMP", "Timestamp": float(at_s)}:
            return _open_at(account, stream, at_s)
        case {"Type": "FROM_TIMESTAMP", "Timestamp": float(from_s)}:
            return [shard for shard in stream.shards if shard.closed_s is None or shard.closed_s >= from_s]
        case _:  # FROM_TRIM_HORIZON, which no filter means too: whatever has not expired
            return stream.shards


def _oldest(stream: Stream) -> list[Shard]:
    """The shards that were open at the trim horizon: those whose parents have expired, or who never had any.

    Said by lineage and not by time because a split in the millisecond of the horizon must not count twice.
    """
    return [shard for shard in stream.shards if not any(map(stream.knows, shard.parent_ids))]


def _open_at(account: Account, stream: Stream, at_s: float) -> list[Shard]:
    """Both ends count, as documented. A time before the horizon or the stream means the horizon."""
    if at_s <= max(stream.horizon_s(account.now_s), stream.created_s):
        return _oldest(stream)
    return [
        shard
        for shard in stream.shards
        if shard.opened_s <= at_s and (shard.closed_s is None or shard.closed_s >= at_s)
    ]
