"""`Data` is base64 text, timestamps are epoch seconds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, NotRequired, TypedDict

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    IteratorExpired,
    Throttled,
    Trimmed,
    Unavailable,
)
from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_daemon.ports import FetchedRecords, StreamSummary
from kcl_daemon.records.payload import Payload
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard, StartAt
from kcl_protocol.messages import Record

_MS_PER_S: Final = 1000
_FILTERS: Final = {
    StartAt.TRIM_HORIZON: "AT_TRIM_HORIZON",
    StartAt.LATEST: "AT_LATEST",
    StartAt.TIMESTAMP: "AT_TIMESTAMP",
}
_NOT_FOUND: Final = frozenset(
    {"EntityNotFoundException", "ResourceNotFoundException", "TableNotFoundException"}
)
_THROTTLED: Final = frozenset({
    "BandwidthLimitExceeded", "KMSThrottlingException", "LimitExceededException",
    "ProvisionedThroughputExceededException", "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException",
    "SlowDown", "ThrottledException", "Throttling", "ThrottlingException", "TooManyRequestsException",
})  # fmt: skip
_DENIED: Final = frozenset({
    "AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken", "ExpiredTokenException",
    "IncompleteSignature", "IncompleteSignatureException", "InvalidClientTokenId", "InvalidIdentityToken",
    "InvalidSignatureException", "KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException",
    "KMSNotFoundException", "KMSOptInRequired", "MissingAuthenticationToken", "MissingAuthenticationTokenException",
    "NotAuthorized", "OptInRequired", "RequestExpired", "SignatureDoesNotMatch", "UnrecognizedClientException",
})  # fmt: skip
# Something is not ready, expired or in conflict; this passes by itself.
_TRANSIENT: Final = frozenset({
    "ConditionalRequestConflict", "ContinuousBackupsUnavailableException", "ExpiredNextTokenException", "InternalFailure", "InternalFailureException", "InternalServerError", "OperationAborted",
    "ReplicatedWriteConflictException",
    "RequestTimeout", "RequestTimeoutException", "ResourceInUseException", "ServiceUnavailable",
    "ServiceUnavailableException", "TransactionConflictException", "TransactionInProgressException",
})  # fmt: skip
_OF_ITERATORS: Final[dict[str, type[AwsError]]] = {
    "ExpiredIteratorException": IteratorExpired,
    "TrimmedDataAccessException": Trimmed,
}
_MESSAGE_CHARACTERS: Final = 500


class RecordShape(TypedDict):
    SequenceNumber: str
    PartitionKey: NotRequired[str | None]
    Data: str
    ApproximateArrivalTimestamp: NotRequired[float]


class HashRangeShape(TypedDict):
    StartingHashKey: str
    EndingHashKey: str


class ChildShardShape(TypedDict):
    ShardId: str
    ParentShards: Sequence[str]
    HashKeyRange: HashRangeShape


class RecordsShape(TypedDict):
    Records: Sequence[RecordShape]
    NextShardIterator: NotRequired[str | None]
    MillisBehindLatest: NotRequired[int]
    ChildShards: NotRequired[Sequence[ChildShardShape]]


class NumberRangeShape(TypedDict):
    StartingSequenceNumber: str
    EndingSequenceNumber: NotRequired[str]


class ShardShape(TypedDict):
    ShardId: str
    ParentShardId: NotRequired[str]
    AdjacentParentShardId: NotRequired[str]
    HashKeyRange: HashRangeShape
    SequenceNumberRange: NumberRangeShape


class ShardsShape(TypedDict):
    Shards: Sequence[ShardShape]
    NextToken: NotRequired[str]


class DescriptionShape(TypedDict):
    StreamName: str
    StreamARN: str
    StreamStatus: str
    StreamCreationTimestamp: float
    RetentionPeriodHours: NotRequired[int]
    RecordDistributionStrategy: NotRequired[str]


class SummaryShape(TypedDict):
    StreamDescriptionSummary: DescriptionShape


class StreamsShape(TypedDict):
    StreamSummaries: Sequence[DescriptionShape]
    NextToken: NotRequired[str]


class IteratorShape(TypedDict):
    ShardIterator: str


def shard_filter(start: InitialPosition) -> dict[str, object]:
    """Only shards open at that position (KCL: HierarchicalShardSyncer)."""
    if start.timestamp_s is None:
        return {"Type": _FILTERS[start.at]}
    return {"Type": _FILTERS[start.at], "Timestamp": start.timestamp_s}


@contextmanager
def parsing_answer(operation: str) -> Generator[None, None, None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise Unavailable(f"the answer cannot be understood: {error!r:.200}", operation=operation) from error


def fetched(answer: RecordsShape) -> FetchedRecords:
    with parsing_answer("GetRecords"):
        payload = Payload.of([_record(entry) for entry in answer["Records"]])
        if payload and payload.last < payload.first:  # also finds invalid numbers
            raise ValueError("the records are out of order")
        return FetchedRecords(
            payload=payload,
            next_iterator=text(answer.get("NextShardIterator") or "") or None,
            millis_behind_latest=_count(answer.get("MillisBehindLatest")),
            child_shards=child_shards(answer.get("ChildShards")),
        )


def text(shape: object) -> str:
    if not isinstance(shape, str):
        raise TypeError(f"{shape!r:.50} is no text")
    return shape


def child_shards(shape: Sequence[ChildShardShape] | None) -> tuple[ChildShard, ...]:
    return tuple(_child_shard(child) for child in shape or ())


def shards(answer: ShardsShape) -> tuple[Shard, ...]:
    with parsing_answer("ListShards"):
        return tuple(_shard(shard) for shard in answer["Shards"])


def summary(answer: SummaryShape) -> StreamSummary:
    with parsing_answer("DescribeStreamSummary"):
        return _summary(answer["StreamDescriptionSummary"])


def summaries(answer: StreamsShape) -> tuple[StreamSummary, ...]:
    with parsing_answer("ListStreams"):
        return tuple(_summary(shape) for shape in answer["StreamSummaries"])


def _summary(shape: DescriptionShape) -> StreamSummary:
    hours = shape.get("RetentionPeriodHours")  # a list of streams has none
    return StreamSummary(
        name=shape["StreamName"],
        arn=shape["StreamARN"],
        status=shape["StreamStatus"],
        creation_time_s=float(shape["StreamCreationTimestamp"]),
        retention_s=None if hours is None else hours * 3600.0,
        distribution=shape.get("RecordDistributionStrategy"),
    )


def iterator(answer: IteratorShape) -> str:
    with parsing_answer("GetShardIterator"):
        return answer["ShardIterator"]


def _record(entry: RecordShape) -> Record:
    arrival_s, key = entry.get("ApproximateArrivalTimestamp"), entry.get("PartitionKey")
    return Record(
        text(entry["Data"]),
        None if key is None else text(key),
        text(entry["SequenceNumber"]),
        None if arrival_s is None else round(arrival_s * _MS_PER_S),
    )


def _count(shape: object) -> int | None:
    if shape is not None and type(shape) is not int:
        raise TypeError(f"{shape!r:.50} is no count")
    return shape


def _hash_range(shape: HashRangeShape) -> HashRange:
    return HashRange(int(shape["StartingHashKey"]), int(shape["EndingHashKey"]))


def _child_shard(shape: ChildShardShape) -> ChildShard:
    """ValueError without parents: its lease would be read before they are finished (KCL: DataRetrievalUtil)."""
    if not shape["ParentShards"]:
        raise ValueError(f"child shard {shape['ShardId']} has no parents")
    return ChildShard(
        shard_id=ShardId(shape["ShardId"]),
        parent_shard_ids=frozenset(map(ShardId, shape["ParentShards"])),
        hash_range=_hash_range(shape["HashKeyRange"]),
    )


def _shard(shape: ShardShape) -> Shard:
    parents = (shape.get("ParentShardId"), shape.get("AdjacentParentShardId"))
    numbers = shape["SequenceNumberRange"]
    ending = numbers.get("EndingSequenceNumber")
    return Shard(
        shard_id=ShardId(shape["ShardId"]),
        hash_range=_hash_range(shape["HashKeyRange"]),
        parent_shard_ids=frozenset(ShardId(parent) for parent in parents if parent),
        starting_sequence_number=int(numbers["StartingSequenceNumber"]),
        ending_sequence_number=None if ending is None else int(ending),
    )


def service_error(
    code: str, message: str, *, operation: str, not_found: type[AwsError], status: int | None = None
) -> AwsError:
    return _kind(code, status, not_found)(_shown(code, message), operation=operation)


def cancelled_part(code: str, message: str, *, operation: str, not_found: type[AwsError]) -> AwsError:
    for spelling in (code, f"{code}Exception", code.removesuffix("Error")):
        kind = _kind(spelling, None, not_found)
        if kind is not InvalidRequest:
            return kind(_shown(code, message), operation=operation)
    return InvalidRequest(_shown(code, message), operation=operation)


def _kind(code: str, status: int | None, not_found: type[AwsError]) -> type[AwsError]:
    if code in _NOT_FOUND:
        return not_found
    if code in _OF_ITERATORS:
        return _OF_ITERATORS[code]
    for codes, kind in ((_THROTTLED, Throttled), (_DENIED, AccessDenied), (_TRANSIENT, Unavailable)):
        if code in codes:
            return kind
    return _kind_by_status(status)


def _kind_by_status(status: int | None) -> type[AwsError]:
    match status:
        case HTTPStatus.TOO_MANY_REQUESTS:
            return Throttled
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return AccessDenied
        case HTTPStatus.REQUEST_TIMEOUT:
            return Unavailable
        case int() if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unavailable
        case _:
            return InvalidRequest


def _shown(code: str, message: str) -> str:
    first_line = message.strip().partition("\n")[0][:_MESSAGE_CHARACTERS]
    return f"{code}: {first_line}" if first_line else code
