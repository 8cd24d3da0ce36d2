"""The rules of a table's changes: order per item over all shards, and the copy that a reader makes of the images.

Owns what became of each item, in order. Knows nothing of shards but where a change stands.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any, Final, cast

from kcl_protocol.messages import Record
from tests.simulator.rules.deliveries import Incarnation
from tests.simulator.rules.truth import Position, ShardTruth
from tests.simulator.violation import report

ID: Final = "id"
VERSION: Final = "version"


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an item: its versions before and after; None: it was not there."""

    item: str
    old: int | None
    new: int | None

    def __str__(self) -> str:
        return f"{self.item} {self.old} {self.new}"


def change_of(record: Record) -> Change:
    """As a child reads it, in any of the three forms.

    Raises:
        ValueError: it is none.
    """
    data = cast("dict[str, Any]", json.loads(b64decode(record.data)))
    found = cast("dict[str, Any]", data.get("dynamodb", data))
    keys, old, new = (
        _of(found, names) for names in (("Keys", "keys"), ("OldImage", "old"), ("NewImage", "new"))
    )
    if not keys:
        raise ValueError(f"a change without keys: {data}")
    return Change(str(_value(keys[ID])), _version(old), _version(new))


def _of(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    return next((found[name] for name in names if found.get(name)), None)


def _version(image: dict[str, Any] | None) -> int | None:
    return None if image is None else int(_value(image[VERSION]))


def key_of(item: str) -> str:
    """The partition key of its records."""
    return json.dumps({ID: {"S": item}}, separators=(",", ":"))


def _value(value: Any) -> Any:
    """Plain, or with its type."""
    return next(iter(value.values())) if isinstance(value, dict) else value


@dataclass(slots=True)
class _Story:
    """One item's changes.

    Args:
        places: where each stands, in order.
        given: how many of them were given to children, or need not be.
    """

    places: list[tuple[ShardTruth, int]] = field(default_factory=list[tuple[ShardTruth, int]])
    given: int = 0


class ItemRules:
    """All items of all tables of a run, by table and id."""

    def __init__(self) -> None:
        self._stories: dict[str, _Story] = {}
        self._numbers: dict[str, list[int]] = {}
        self.copy: dict[str, int | None] = {}
        self._aside: dict[str, int] = {}
        self.scans = self.changes = 0
        """How many items, and how many changes, were given to children."""

    def written(self, item: str, shard: ShardTruth) -> None:
        """The last change of a shard is one of this item."""
        story = self._stories.setdefault(item, _Story())
        self._numbers.setdefault(shard.shard_id, []).append(len(story.places))
        story.places.append((shard, len(shard.positions) - 1))

    def scanned(self, change: Change) -> None:
        """A child is given an item of a scan."""
        self.scans += 1
        self.copy[change.item] = change.new

    def set_aside(self, shard: ShardTruth | None, position: Position, change: Change) -> None:
        """One is a letter, as if it were in the copy; letters that are stored together come in any order."""
        place = None if shard is None else shard.index.get(position)
        if shard is not None and place is not None:
            number = self._numbers[shard.shard_id][place]
            if number < self._aside.get(change.item, 0):
                return
            self._aside[change.item] = number
        self.copy[change.item] = change.new

    def delivered(self, child: Incarnation, shard: ShardTruth, place: int, change: Change) -> None:
        """A child is given a change: none of the same item that came before is missing, in whichever shard it is."""
        self.changes += 1
        number = self._numbers[shard.shard_id][place]
        # What comes again before a letter is older than the letter, which comes no more.
        if number >= self._aside.get(change.item, 0):
            self.copy[change.item] = change.new
        story = self._stories[change.item]
        if not child.keeps_order:
            return
        for before, at in story.places[story.given : number]:
            if not (
                before.is_past or before.deliveries[at] or at < before.first_missing or at in before.unowed
            ):
                missing = before.positions[at]
                report(
                    "item_out_of_order",
                    f"{child} was given {shard.positions[place]} of {change.item} before {missing} of {before.shard_id}",
                )
        story.given = max(story.given, number + 1)
