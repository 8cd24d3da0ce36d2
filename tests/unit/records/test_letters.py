"""Dead letters that come back: lines, order, receipts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_daemon.records.letters import (
    BadLetter,
    Outcome,
    Receipt,
    ShardLetters,
    StoredLetter,
    in_order,
    newest_copies,
    parse_letter,
    receipts_of,
    unwrapped,
)
from kcl_protocol.messages import Record, RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.consumer.letters import LETTER

TEXT = st.text(max_size=8)
WHOLE = st.integers(0, 2**53)
SCHEMA = st.none() | st.builds(RecordSchema, TEXT, TEXT, TEXT, TEXT)
LETTERS = st.builds(
    DeadLetter,
    st.builds(
        Record, st.sampled_from(["", "cG9pc29u"]), st.none() | TEXT, st.integers(0, 2**186).map(str), st.none() | WHOLE, WHOLE, SCHEMA
    ),
    TEXT, TEXT, st.none() | TEXT, TEXT, TEXT, WHOLE, WHOLE, TEXT,
    st.lists(TEXT, max_size=3).map(tuple),
    st.sampled_from(LetterCause),
)  # fmt: skip


def stored(shard: str, number: int, arrival_ms: int, **more: object) -> StoredLetter:
    record = replace(
        LETTER.record,
        sequence_number=str(number),
        sub_sequence_number=0,
        approximate_arrival_timestamp=arrival_ms,
    )
    letter: DeadLetter = replace(LETTER, shard_id=shard, record=record, **more)  # type: ignore[arg-type]
    return parse_letter(letter.line(), "here")


@settings(max_examples=examples(200))
@given(LETTERS)
def test_a_line_is_read_as_it_was_written(letter: DeadLetter) -> None:
    assert parse_letter(letter.line(), "line 1").letter == letter


def test_a_key_with_a_lone_surrogate_is_read_as_it_was() -> None:
    letter = replace(LETTER, record=replace(LETTER.record, partition_key="\ud83d"))
    assert parse_letter(letter.line(), "").letter == letter


def test_fields_of_later_versions_are_passed_over() -> None:
    line = json.dumps({**json.loads(LETTER.line()), "newKey": [1]}).encode()
    assert parse_letter(line, "").letter == LETTER


def test_a_letter_whose_data_is_elsewhere_checks_their_size() -> None:
    fields = {**json.loads(LETTER.line()), "data": None, "dataAt": "s3://bucket/a/b", "dataBytes": 6}
    found = parse_letter(json.dumps(fields).encode(), "")
    assert (found.data_at, found.data_bytes) == ("s3://bucket/a/b", 6)
    assert found.with_data(b"poison") == LETTER
    with pytest.raises(BadLetter, match="5 bytes, the letter says 6"):
        found.check_size(5)


def test_a_letter_beside_its_data_needs_no_pointer_to_it() -> None:
    fields = {key: value for key, value in json.loads(LETTER.line()).items() if key != "data"}
    found = parse_letter(json.dumps({**fields, "dataBytes": 6}).encode(), "", "s3://bucket/here")
    assert found.data_at == "s3://bucket/here"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shardId": None}, "shardId is null, not a string"),
        ({"sequenceNumber": "x"}, 'sequenceNumber is "x", not digits in quotes'),
        ({"data": "!"}, "not base64"),
        ({"data": 7}, "not base64"),
        ({"data": None}, "neither data nor dataAt"),
        ({"data": None, "dataAt": "s3://b/k"}, "neither data nor dataAt and dataBytes"),
        ({"dataAt": "http://b/k"}, "not s3://BUCKET/KEY"),
        ({"cause": "bored"}, "not one of failed, attempts, rejected, expired"),
        ({"stderr": [1]}, "not a list of strings"),
        ({"setAsideTimestamp": -1}, "not a whole number from 0"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], reason: str) -> None:
    with pytest.raises(BadLetter) as caught:
        parse_letter(json.dumps({**json.loads(LETTER.line()), **change}).encode(), "")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"[]", b"{}", b'{"text":"hi"}', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_a_line_that_is_no_letter_is_refused(line: bytes) -> None:
    with pytest.raises(BadLetter):
        parse_letter(line, "")


@settings(max_examples=examples(200))
@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: json.dumps({"shardId": text}).encode()))
def test_any_malformed_line_is_a_bad_letter(line: bytes) -> None:
    with pytest.raises(BadLetter):
        parse_letter(line, "")


def test_a_notification_is_unwrapped() -> None:
    line = LETTER.line().decode()
    assert (
        unwrapped(json.dumps({"Type": "Notification", "TopicArn": "arn", "Message": line})) == LETTER.line()
    )
    assert unwrapped(line) == LETTER.line()
    assert unwrapped('{"Type":"Notification","Message":7}') == b'{"Type":"Notification","Message":7}'
    assert unwrapped('"Notification"{') == b'"Notification"{'


def test_a_head_is_small_and_has_the_same_name() -> None:
    found = parse_letter(replace(LETTER, error="x" * 10_000).line(), "line 1")
    head = found.head(7)
    assert (head.name, head.position, head.data_bytes, head.handle) == (found.name, found.position, 6, 7)
    assert (head.letter.record.data, head.letter.stderr, len(head.letter.error)) == ("", (), 300)


@pytest.mark.parametrize(
    ("word", "is_called"),
    [
        (LETTER.key, True),
        ("billing/orders/shardId-000000000003/4951-7", True),
        ("shardId-000000000003/4951-7", True),
        ("4951-7", True),
        ("951-7", False),
        ("", False),
    ],
)
def test_a_letter_is_found_by_key_or_name(word: str, is_called: bool) -> None:
    assert parse_letter(LETTER.line(), "").is_called(word) is is_called


def test_letters_of_a_shard_come_in_the_order_of_their_records() -> None:
    numbers = [10, 9, 100, 1]
    (shard,) = in_order(stored("a", number, 5) for number in numbers)
    assert [each.position for each in shard.letters] == [
        ExtendedSequenceNumber(str(n)) for n in sorted(numbers)
    ]


def test_parents_come_before_their_children() -> None:
    child, parent, other = stored("child", 5, 2_000), stored("parent", 9, 1_000), stored("other", 1, 1_500)
    shards = in_order([child, parent, stored("other", 2, 2_500), other])
    assert [shard.of.shard_id for shard in shards] == ["parent", "other", "child"]
    first, second, third = shards
    assert first.may_begin(shards)
    assert not second.may_begin(shards), "its first letter arrived after the last of the first"
    assert second.may_begin([second, third])
    assert not third.may_begin(shards)
    assert third.may_begin([second, third]), "they overlap: neither is the other's parent"


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=12
    )
)
def test_the_first_shard_may_always_begin(letters: list[tuple[str, int, int]]) -> None:
    shards = in_order(stored(shard, number, arrival) for shard, number, arrival in letters)
    assert shards[0].may_begin(shards)
    assert [shard.first_ms for shard in shards] == sorted(shard.first_ms for shard in shards)
    assert sum(len(shard.letters) for shard in shards) == len(letters)


def test_applications_and_streams_are_kept_apart() -> None:
    letters = [stored("a", 1, 1), stored("a", 1, 1, application_name="b"), stored("a", 1, 1, stream_name="c")]
    assert len(newest_copies(letters)) == 3
    assert len(in_order(letters)) == 3


def test_of_two_copies_the_newest_counts() -> None:
    old, new = stored("a", 1, 1, set_aside_ms=10), stored("a", 1, 1, set_aside_ms=20)
    assert newest_copies([new, old]) == newest_copies([old, new]) == {new.name: new}


def test_a_letter_that_was_set_aside_again_is_not_done() -> None:
    old, new = stored("a", 1, 1, set_aside_ms=10), stored("a", 1, 1, set_aside_ms=20)
    receipt = Receipt(old.name, 10, Outcome.DONE, "", 15)
    assert receipt.is_done(old)
    assert not receipt.is_done(new)
    assert not replace(receipt, outcome=Outcome.FAILED).is_done(old)


RECEIPTS = st.builds(Receipt, TEXT, WHOLE, st.sampled_from(Outcome), TEXT | st.just("\ud800"), WHOLE)


@settings(max_examples=examples(100))
@given(st.lists(RECEIPTS, max_size=4), st.data())
def test_of_receipts_that_were_cut_anywhere_the_whole_ones_count(
    receipts: list[Receipt], data: st.DataObject
) -> None:
    text = b"".join(each.line() + b"\n" for each in receipts)
    cut = data.draw(st.integers(0, len(text)))
    whole = list(receipts_of(text[:cut].split(b"\n")))
    assert receipts[: text[:cut].count(b"\n")] == whole[: text[:cut].count(b"\n")]
    assert len(whole) <= text[:cut].count(b"\n") + 1, "a line that lacks only its end is whole"


def test_shards_know_when_their_letters_arrived() -> None:
    shard = ShardLetters((stored("a", 1, 7), stored("a", 2, 3)))
    assert (shard.first_ms, shard.last_ms) == (3, 7)
