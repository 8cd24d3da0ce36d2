"""The operations on consumers: register, describe, list, deregister. Knows no subscription."""

from __future__ import annotations

import re
from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.consumer import Consumer
from kcl_local.kinesis.errors import ServiceError, in_use, invalid_argument, malformed, not_found
from kcl_local.kinesis.stream import Stream
from kcl_local.kinesis.tokens import ConsumerPage

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CREATING_MAX: Final = 5
_PAGE: Final = 100
_PAGE_MAX: Final = 10_000


def register_consumer(account: Account, arguments: Arguments) -> Answer:
    """RegisterStreamConsumer. The answer says CREATING, as the service's does, even where that is over at once."""
    arguments.text("StreamARN")  # the name alone would not do
    name = arguments.text("ConsumerName")
    if not _NAME.fullmatch(name):
        raise malformed(f"ConsumerName must be 1 to 128 of a-z A-Z 0-9 _ . -, not {name!r:.140}")
    stream = account.active_stream(arguments)
    consumers = account.consumers(stream)
    if name in consumers:
        raise in_use(f"consumer {name} of stream {stream.name} already exists")
    creating = [each for each in consumers.values() if _status(account, each) == "CREATING"]
    if len(consumers) >= account.options.fan_out.consumers_max or len(creating) >= _CREATING_MAX:
        raise ServiceError(
            "LimitExceededException",
            f"stream {stream.name} has {len(consumers)} consumers, {len(creating)} of them CREATING",
        )
    consumer = Consumer(name, stream.arn, account.now_s)
    consumers[name] = consumer
    return {"Consumer": _entry(account, consumer) | {"ConsumerStatus": "CREATING"}}


def describe_consumer(account: Account, arguments: Arguments) -> Answer:
    """DescribeStreamConsumer, by ConsumerARN or by StreamARN and ConsumerName."""
    consumer = named_consumer(account, arguments)[1]
    return {"ConsumerDescription": _entry(account, consumer) | {"StreamARN": consumer.stream_arn}}


def list_consumers(account: Account, arguments: Arguments) -> Answer:
    """ListStreamConsumers, in the order of names."""
    page_size = arguments.optional_integer("MaxResults", 1, _PAGE_MAX) or _PAGE
    arguments.text("StreamARN")
    stream = account.stream(arguments)
    after = ""
    if arguments.has("NextToken"):
        if arguments.has("StreamCreationTimestamp"):
            raise invalid_argument("NextToken and StreamCreationTimestamp cannot be provided together.")
        token = ConsumerPage.decode(arguments.text("NextToken"))
        if account.identified_stream(token.stream_arn, token.stream_identity) is not stream:
            raise invalid_argument("StreamARN is not the stream of the NextToken")
        after = token.after_name
    consumers = account.consumers(stream)
    names = sorted(name for name in consumers if name > after)
    page = names[:page_size]
    answer: Answer = {"Consumers": [_entry(account, consumers[name]) for name in page]}
    if len(names) > page_size:
        answer["NextToken"] = ConsumerPage(stream.arn, stream.identity, page[-1]).encode()
    return answer


def deregister_consumer(account: Account, arguments: Arguments) -> Answer:
    """DeregisterStreamConsumer; its subscriptions end."""
    stream, consumer = named_consumer(account, arguments)
    if consumer.deleted_s is not None:
        raise in_use(f"consumer {consumer.name} of stream {stream.name} is DELETING")
    consumer.deleted_s = account.now_s
    account.consumers(stream)
    for shard_id in consumer.turns:
        if stream.knows(shard_id):
            stream.shard(shard_id).wake()
    return {}


def named_consumer(account: Account, arguments: Arguments) -> tuple[Stream, Consumer]:
    """The consumer that ConsumerARN, or StreamARN and ConsumerName, name, and its stream."""
    arn = arguments.optional_text("ConsumerARN")
    if arn is None:
        if not (arguments.has("StreamARN") and arguments.has("ConsumerName")):
            raise invalid_argument("ConsumerARN, or StreamARN and ConsumerName, must be given")
        stream = account.stream(arguments)
        consumer = account.consumers(stream).get(arguments.text("ConsumerName"))
    else:
        stream_arn, found, rest = arn.partition("/consumer/")
        if not found:
            raise invalid_argument(f"ConsumerARN {arn:.300} is not that of a consumer")
        stream = account.stream_of(stream_arn)
        consumer = account.consumers(stream).get(rest.partition(":")[0])
        if consumer is not None and consumer.arn != arn:
            consumer = None
    if consumer is None:
        raise not_found(f"consumer {arn or arguments.text('ConsumerName')} of stream {stream.name} not found")
    return stream, consumer


def require_active(account: Account, consumer: Consumer) -> None:
    """ServiceError where the consumer cannot read (yet, or any more)."""
    status = _status(account, consumer)
    if status != "ACTIVE":
        raise in_use(f"consumer {consumer.arn} is not ACTIVE, but {status}")


def _status(account: Account, consumer: Consumer) -> str:
    return consumer.status(account.now_s, account.options.fan_out.creating_s)


def _entry(account: Account, consumer: Consumer) -> Answer:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": _status(account, consumer),
        "ConsumerCreationTimestamp": consumer.created_s,
    }
