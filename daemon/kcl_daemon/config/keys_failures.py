"""The properties of what happens when children fail, and how the place of dead letters is written.

Pure data, part of the table in `keys`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from kcl_daemon.config.failure_settings import (
    ChildFailurePolicy,
    Destination,
    LetterBox,
    PoisonRecordPolicy,
)
from kcl_daemon.config.key import MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.kinds import (
    INT_MAX,
    Kind,
    Refused,
    choice,
    endpoint,
    stream_arn,
    trimmed,
    whole_number,
)

_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_QUEUE_PATH: Final = re.compile(r"/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?")
# sqs.eu-west-1.amazonaws.com, vpce-....sqs.eu-west-1.vpce.amazonaws.com, eu-west-1.queue.amazonaws.com
_REGION: Final = re.compile(
    r"(?:^|\.)(?:sqs(?:-fips)?\.(?P<new>[a-z0-9-]+)|(?P<old>[a-z0-9-]+)\.queue)\.(?:vpce\.)?amazonaws\."
)


def letter_box() -> Kind:
    """Where dead letters go."""

    def read(text: str) -> Destination:
        scheme, colon, rest = trimmed(text).partition(":")
        boxes = {box.value: box for box in LetterBox}
        if not colon or scheme not in boxes or not rest:
            raise Refused("not a valid destination")
        box = boxes[scheme]
        match box:
            case LetterBox.FILE:
                return Destination(box, _path(rest))
            case LetterBox.SQS:
                return _queue(rest)
            case LetterBox.KINESIS:
                return _stream(rest)

    return Kind(read, "file:PATH, sqs:QUEUE_URL, kinesis:STREAM or kinesis:STREAM_ARN")


def _path(text: str) -> str:
    if text.startswith("//") and not text.startswith("///"):
        raise Refused("a file on another host; use file:PATH or file:///PATH")
    path = text[2:] if text.startswith("///") else text
    if "\0" in path or path.endswith("/"):
        raise Refused("not the path of a file")
    return path


def _queue(text: str) -> Destination:
    address = endpoint().read(text)
    assert isinstance(address, str), "endpoint gives the address"
    parts = urlsplit(address)
    if not _QUEUE_PATH.fullmatch(parts.path):
        raise Refused("not a queue URL, which ends in /ACCOUNT/NAME with an account of 12 digits")
    found = _REGION.search(parts.hostname or "")
    region_name = (found["new"] or found["old"]) if found else None
    return Destination(LetterBox.SQS, address, region_name)


def _stream(text: str) -> Destination:
    if not text.startswith("arn:"):
        if not _STREAM_NAME.fullmatch(text):
            raise Refused("not the name of a stream")
        return Destination(LetterBox.KINESIS, text)
    arn = stream_arn().read(text)
    return Destination(LetterBox.KINESIS, text, getattr(arn, "region_name", None))


FAILURE_POLICY: Final = Key(
    "childFailurePolicy",
    choice({policy.value: policy for policy in ChildFailurePolicy}),
    "failures.policy",
    "`RESTART`: a failed child is replaced; other shards are not affected. `EXIT`: the daemon shuts "
    "down gracefully with exit code 1, as the Java daemon does.",
    extension=True,
)
FAILURES_MOST: Final = Key(
    "childMaxFailures",
    whole_number(0, INT_MAX, "failures"),
    "failures.failures_most",
    "After this many failures in a row without progress, the lease is released and marked degraded so "
    "that another worker can try ([failures](failures.md)). 0: never.",
    extension=True,
)
POISON_POLICY: Final = Key(
    "poisonRecordPolicy",
    choice({policy.value: policy for policy in PoisonRecordPolicy}),
    "failures.poison",
    "What happens to a record that no child can process. `RETRY`: the daemon keeps restarting children "
    "before it. `DEADLETTER`: the daemon finds the record and stores it at `deadLetterDestination`. "
    "`SKIP`: the daemon finds the record and skips it ([failures](failures.md)).",
    extension=True,
)
POISON_TRIES: Final = Key(
    "poisonRecordMaxFailures",
    whole_number(1, INT_MAX, "failures"),
    "failures.poison_tries",
    "A record is set aside after this many children in a row fail on it alone.",
    extension=True,
)
DEAD_LETTERS: Final = Key(
    "deadLetterDestination",
    letter_box(),
    "failures.dead_letters",
    "Where dead letters go: a file (JSON lines, readable by its owner only), an SQS queue or a Kinesis "
    "stream.",
    default="none",
    extension=True,
)

FAILURE_KEYS: Final[tuple[Key, ...]] = (
    FAILURE_POLICY,
    FAILURES_MOST,
    Key(
        "childDegradedMillis",
        MILLISECONDS_OR_NONE,
        "failures.degraded_ms",
        "After a worker released a shard because of failures, it waits this long before it starts on "
        "that shard again.",
        extension=True,
    ),
    POISON_POLICY,
    POISON_TRIES,
    DEAD_LETTERS,
)
