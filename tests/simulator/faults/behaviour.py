"""How simulated children behave: when they checkpoint, how long they take, what they do wrong.

Owns the choice; `program` acts it out. Knows nothing of pipes or the daemon.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final
from zlib import crc32

from kcl_protocol.messages import Record
from tests.simulator.chance import Chance
from tests.simulator.rules.bank import Bank
from tests.simulator.rules.landing import Landing


class When(Enum):
    """When a child checkpoints while it processes; every child does so when asked to stop and at the shard's end."""

    EACH_BATCH = auto()
    EVERY_NTH = auto()
    MIDDLE_OF_BATCH = auto()
    TWICE_A_BATCH = auto()
    AT_END_ONLY = auto()


class Mischief(Enum):
    """What a child does wrong instead of its next action, or besides it."""

    EXIT = auto()  # in the middle of the action
    EXIT_LATER = auto()  # some time after it, perhaps while idle
    HANG = auto()  # never answers
    DAWDLE = auto()  # answers much later, perhaps after everybody has lost patience
    CLOSE_STDOUT = auto()
    WRONG_STATUS = auto()
    SECOND_STATUS = auto()
    HALF_LINE_AND_EXIT = auto()
    HALF_LINE = auto()  # the rest comes later: no harm
    GARBAGE = auto()  # no harm
    ECHO = auto()  # no harm
    FOREIGN_CHECKPOINT = auto()  # beyond what it was given: must be refused, no harm
    MALFORMED_CHECKPOINT = auto()  # must be refused, no harm
    NO_CHECKPOINT_AT_END = auto()  # answers shardEnded without the checkpoint that it owes
    EXIT_INSIDE = auto()  # once it has checkpointed some record of its batch


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One child's ways.

    Args:
        when: it checkpoints.
        every: n of EVERY_NTH.
        explicit: it names sequence numbers in its checkpoints.
        process_s: how long it takes for a batch, from and to.
        ignores_eof: it does not end when its stdin is closed.
        ignores_term: it does not end at SIGTERM.
        takes_frames: it announces that it takes frames.
    """

    when: When = When.EACH_BATCH
    every: int = 3
    explicit: bool = False
    process_s: tuple[float, float] = (0.005, 0.2)
    ignores_eof: bool = False
    ignores_term: bool = False
    takes_frames: bool = False


@dataclass(slots=True)
class ChildrenPlan:
    """What the children of a run are like; the plan of a scenario may change it at any time.

    Args:
        behaviour: of every child; None: drawn for each.
        mischief: probability of each per action.
        stubborn: probability that a child ignores EOF, and of those that it ignores SIGTERM as well.
        start_fails: probability that a child cannot be started.
        pauses: probability that a child asks for a pause after a batch.
        import_s: how long a child takes before it reads its first line, from and to; None: no time.
        reject_every: every child rejects each so-many-th record, as `poison_every`, and now and then another; 0: none.
        poison_every: every child dies at each so-many-th record that was written, whenever that is; 0: at none.
        bank: the children carry out transfers; None: they do nothing with their records.
        landing: the children write their records into a landing log; None: they do not.
        misdeeds: how often one did something wrong.
    """

    behaviour: Behaviour | None = None
    mischief: Mapping[Mischief, float] = field(default_factory=dict[Mischief, float])
    stubborn: float = 0.0
    start_fails: float = 0.0
    pauses: float = 0.0
    poison_every: int = 0
    reject_every: int = 0
    import_s: tuple[float, float] | None = None
    bank: Bank | None = None
    landing: Landing | None = None
    misdeeds: int = 0

    def is_poison(self, record: Record) -> bool:
        """Whether every child dies at this record."""
        return bool(self.poison_every) and is_poison(record.data, self.poison_every)

    def rejected(self, records: Sequence[Record], chance: Chance) -> list[Record]:
        """Those that a child does not want."""
        if not self.reject_every:
            return []
        return [
            record
            for record in records
            if is_poison(record.data, self.reject_every) or chance.happens(_REJECTED_BY_CHANCE)
        ]

    def behave(self) -> None:
        """From now on every child does what it should."""
        self.mischief = {}
        self.stubborn = 0.0
        self.start_fails = 0.0
        self.pauses = 0.0

    def draw(self, chance: Chance) -> Behaviour:
        """The behaviour of a new child."""
        if self.behaviour is not None:
            return self.behaviour
        slowest = chance.pick((0.02, 0.2, 1.0, 3.0))
        ignores_eof = chance.happens(self.stubborn)
        return Behaviour(
            when=chance.pick(_WHENS),
            every=chance.between(2, 6),
            explicit=chance.happens(0.5),
            process_s=(slowest / 10, slowest),
            ignores_eof=ignores_eof,
            ignores_term=ignores_eof and chance.happens(0.5),
            takes_frames=chance.fork("frames").happens(0.5),
        )

    def mischief_now(self, chance: Chance) -> Mischief | None:
        """What a child does wrong in this action, if anything."""
        if not self.mischief:
            return None
        draw = chance.random()
        for kind, probability in self.mischief.items():
            if draw < probability:
                self.misdeeds += 1
                return kind
            draw -= probability
        return None


def is_poison(data: str, every: int) -> bool:
    """Whether this is a so-many-th record, by the number in its data (base64 text); of a change by its hash; what is no text is none."""
    data_bytes = b64decode(data)
    number = data_bytes.rpartition(b" ")[2]
    if number.isdigit():
        return int(number) % every == 0
    return data_bytes.startswith(b"{") and crc32(data_bytes) % every == 0


_REJECTED_BY_CHANCE: Final = 0.01
_WHENS: Final = tuple(When)
# The last one is drawn where records have parts.
EVERY_MISCHIEF: Final = tuple(Mischief)[:-1]
