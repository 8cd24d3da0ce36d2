from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from kcl_daemon.records.letters import StoredLetter
from kcl_protocol.sequence import ExtendedSequenceNumber

BATCH_BYTES_MOST: Final = 1024**2


class LetterQueue:
    """Which letters of a shard a program is given next, in the order of their records.

    A letter is done once a checkpoint covers it, or its child has ended well. All else is given to the next child again, each
    letter of the last batch alone.
    """

    def __init__(self, letters: Sequence[StoredLetter], *, batch_most: int, tries_most: int) -> None:
        self._waiting = deque(letters)
        self._given: list[StoredLetter] = []
        self._in_hand: list[StoredLetter] = []
        self._alone_to: ExtendedSequenceNumber | None = None
        self._batch_most = batch_most
        self._tries_most = tries_most
        self._tries = Counter[str]()
        self._fruitless = 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._given

    @property
    def is_hopeless(self) -> bool:
        """Children keep failing, and not at a letter."""
        return self._fruitless >= self._tries_most

    def take(self) -> list[StoredLetter]:
        """One letter may be larger than a batch should be."""
        batch: list[StoredLetter] = []
        size_bytes = 0
        while self._waiting and len(batch) < self._batch_most:
            letter = self._waiting[0]
            size_bytes += letter.data_bytes
            alone = self._alone_to is not None and letter.position <= self._alone_to
            if batch and (alone or size_bytes > BATCH_BYTES_MOST):
                break
            batch.append(self._waiting.popleft())
            if alone:
                break
        self._in_hand = list(batch)
        self._given += batch
        return batch

    def answered(self) -> None:
        self._in_hand = []

    def stored(self, position: ExtendedSequenceNumber) -> list[StoredLetter]:
        return self._settle([each for each in self._given if each.position <= position])

    def ended(self) -> list[StoredLetter]:
        return self._settle(list(self._given))

    def held(self, sequence_number: str | None, sub_sequence_number: int | None) -> StoredLetter | None:
        for each in self._in_hand:
            record = each.letter.record
            if (record.sequence_number, record.sub_sequence_number) == (
                sequence_number,
                sub_sequence_number or 0,
            ):
                return each
        return None

    def drop(self, letter: StoredLetter) -> None:
        self._settle([letter])

    def failed(self) -> StoredLetter | None:
        """Returns the letter that has failed often enough, alone each time."""
        given_up: StoredLetter | None = None
        if self._in_hand:
            last = self._in_hand[-1]
            self._alone_to = last.position
            if len(self._in_hand) == 1:
                self._tries[last.name] += 1
                given_up = last if self._tries[last.name] >= self._tries_most else None
        else:
            self._fruitless += 1
        if given_up is not None:
            self._settle([given_up])
        self._waiting.extendleft(reversed(self._given))
        self._given, self._in_hand = [], []
        return given_up

    def _settle(self, letters: list[StoredLetter]) -> list[StoredLetter]:
        if letters:
            self._fruitless = 0
            gone = {each.name for each in letters}
            self._given = [each for each in self._given if each.name not in gone]
            self._in_hand = [each for each in self._in_hand if each.name not in gone]
        return letters
