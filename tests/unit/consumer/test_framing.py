"""A form of batches that this daemon did not have: a class and its registration; by a whole worker in virtual time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from kcl_daemon.config.children import FailureSettings
from kcl_daemon.records.batch import Batch, ReadFacts
from kcl_daemon.records.batch_text import FRAMINGS, LINES, BatchEncoder, Framing, framing_of
from kcl_daemon.records.dead_letter import LetterCause
from kcl_daemon.records.payload import Payload
from kcl_protocol.messages import FRAMES_VERSION, Record
from tests.unit.consumer.poison_stage import DEAD, Stage, perform, until
from tests.unit.consumer.test_consumer_rejects import Rejecting, all_done

PACKED: Final = b"packed "


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    framing_of.cache_clear()
    yield
    framing_of.cache_clear()


class Packed(Framing):
    version = 9

    def __init__(self, *, ahead: bool = True) -> None:
        self.ahead = ahead

    def encode(self, batch: Batch) -> bytes:
        return PACKED + zlib.compress(LINES.encode(batch))

    def decode(self, data: bytes) -> Payload:
        return LINES.decode(zlib.decompress(data.removeprefix(PACKED)))


class Unpacking(Rejecting):
    frames = Packed.version
    packed = 0
    plain = 0

    async def send(self, line: bytes) -> None:
        is_packed = line.startswith(PACKED)
        self.packed += is_packed
        self.plain += b'"processRecords"' in line
        await super().send(zlib.decompress(line.removeprefix(PACKED)) if is_packed else line)


def played(failures: FailureSettings, texts: list[str]) -> Stage:
    stage = Stage(failures=failures)
    stage.children.kind = Unpacking

    async def scene() -> None:
        for text in texts:
            stage.put([text])
        await until(lambda: all_done(stage))

    perform(stage, scene)
    return stage


@pytest.mark.parametrize("ahead", [True, False])
def test_a_child_is_given_the_form_that_it_announces_and_may_reject_records_of_it(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRAMINGS, Packed.version, Packed(ahead=ahead))
    stage = played(FailureSettings(dead_letters=DEAD.dead_letters, attempts=2), ["good 1", "bad", "good 2"])
    (child,) = stage.children.children
    assert isinstance(child, Unpacking)
    assert child.packed > 0
    assert child.plain == 0
    assert stage.seen == ["good 1", "good 2"]
    assert [(each.cause, each.record.partition_key) for each in stage.letters.letters] == [
        (LetterCause.REJECTED, "k\u00fc")
    ]


def test_it_is_given_lines_where_the_form_is_not_known() -> None:
    stage = played(FailureSettings(dead_letters=DEAD.dead_letters), ["good 1", "bad", "good 2"])
    (child,) = stage.children.children
    assert isinstance(child, Unpacking)
    assert (child.packed, child.plain > 0) == (0, True)
    assert stage.seen == ["good 1", "good 2"]
    assert [each["version"] for each in stage.reported("child_frames_unknown")] == [Packed.version]


def test_a_form_says_whether_it_may_be_encoded_ahead_and_before_the_answer_nothing_is() -> None:
    payload, encoder = Payload.of([Record("YQ==", "k", "1")]), BatchEncoder()
    batch = Batch(payload, ReadFacts(1.0, None, 0))
    assert encoder.ahead(batch) is None
    encoder.framing = Packed(ahead=False)
    assert encoder.ahead(batch) is None
    for framing in (Packed(), LINES, FRAMINGS[FRAMES_VERSION]):
        encoder.framing = framing
        encoded = encoder.ahead(batch)
        assert encoded == encoder.encode(batch)
        assert encoded is not None
        assert encoded.framing.decode(encoded.data).decoded() == payload.decoded()


@dataclass(frozen=True)
class Point:
    """As importlib's EntryPoint."""

    makes: Callable[[], object] | None
    value: str = "theirs:Packed"

    def load(self) -> Callable[[], object]:
        if self.makes is None:
            raise ImportError("no module theirs")
        return self.makes


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([Point(Packed)], None),
        ([], "no installed package has it"),
        ([Point(None)], "theirs:Packed cannot be used: ImportError: no module theirs"),
        ([Point(object)], "theirs:Packed makes no Framing"),
    ],
)
def test_an_installed_package_may_have_the_form_and_if_it_cannot_be_used_the_child_is_given_lines(
    points: list[Point], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []

    def found(**of: str) -> list[Point]:
        asked.append(of)
        return points

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    stage = played(FailureSettings(dead_letters=DEAD.dead_letters), ["good"])
    (child,) = stage.children.children
    assert isinstance(child, Unpacking)
    assert (child.packed > 0, child.plain > 0) == (reason is None, reason is not None)
    assert asked == [{"group": "kcl_daemon.framings", "name": "9"}]
    told = [each["reason"] for each in stage.reported("child_frames_unknown")]
    assert told == ([] if reason is None else [reason])
