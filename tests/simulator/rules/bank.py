"""A bank: each record is a transfer between two accounts, carried out by children with `kcl_client.once` in a database.

Owns the database and its rules: no money is lost or made, each transfer is carried out once, and a reader that is late
writes nothing. Knows nothing of how children get their records (`bank_program`).
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final
from zlib import crc32

from kcl_client import Record
from kcl_client.once import Cursor, Reader, SqliteStore
from tests.simulator.chance import Chance
from tests.simulator.rules.truth import Position, ShardTruth, Truth
from tests.simulator.violation import report

_ACCOUNTS: Final = 10
_BALANCE: Final = 1_000
# How often a write is the moment for the next sleep.
_SLEEPS: Final = 0.1


class Fencing(Enum):
    """What guards the transactions of the children."""

    TOKEN = auto()  # the token that the daemon gives, and the position
    POSITION = auto()  # the position alone, as with a daemon that gives no token


@dataclass(frozen=True, slots=True)
class BankPlan:
    """What the children of a run do.

    Args:
        fencing: what guards their transactions.
        sleeps_s: for so long, one after the other, a worker and its children are stopped when a child is about to write. The
            child wakes earlier when its successor has begun.
    """

    fencing: Fencing = Fencing.TOKEN
    sleeps_s: tuple[float, ...] = ()


class Bank:
    """One database for all children of a run, with real transactions."""

    def __init__(self, plan: BankPlan, truth: Truth) -> None:
        self._fencing = plan.fencing
        self._sleeps_s = list(plan.sleeps_s)
        self.on_sleep: Callable[[str, str, float], None] = lambda _worker_id, _shard_id, _for_s: None
        self.on_begin: Callable[[str], None] = lambda _shard_id: None
        self._truth = truth
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        weakref.finalize(self, self._database.close)  # runs end at any point; Python 3.13 warns
        self._database.execute("CREATE TABLE accounts (number integer PRIMARY KEY, balance integer NOT NULL)")
        self._database.execute("CREATE TABLE transfers (record text NOT NULL)")
        rows = [(number, _BALANCE) for number in range(_ACCOUNTS)]
        self._database.executemany("INSERT INTO accounts VALUES (?, ?)", rows)
        self._newest: dict[str, tuple[int, str]] = {}
        self.is_aside: Callable[[str, int], bool] = lambda _shard_id, _place: False
        """Whether a record may be missing here, as it is a letter or was skipped."""

    def store(self) -> SqliteStore:
        """A connection of one child."""
        return _Shared(self._database)

    def reader(self, shard_id: str, token: int) -> Reader:
        """What a child says that it is."""
        return Reader("bank", "", shard_id, token if self._fencing is Fencing.TOKEN else 0)

    def about_to_write(self, worker_id: str, shard_id: str, chance: Chance) -> None:
        """A child has its output ready. Perhaps its host stops just now."""
        if self._sleeps_s and chance.happens(_SLEEPS):
            self.on_sleep(worker_id, shard_id, self._sleeps_s.pop(0))

    def calm_down(self) -> None:
        """Nobody sleeps any more."""
        self._sleeps_s.clear()

    def began(self, shard_id: str, token: int, who: str) -> None:
        """A reader has begun: the database has told it its position."""
        self.on_begin(shard_id)
        self._newest[shard_id] = max((token, who), self._newest.get(shard_id, (token, who)))

    def wrote(self, shard_id: str, token: int, who: str) -> None:
        """A transaction of a reader was accepted."""
        newest, successor = self._newest[shard_id]
        if newest > token:
            report(
                "old_reader_wrote",
                f"{who} with token {token}, after {successor} with token {newest} had begun",
            )

    def begins_anew(self, shard: ShardTruth) -> None:
        """At the latest record, as no checkpoint is stored: what was given before is nobody's while nothing of it is carried out."""
        if self._applied().isdisjoint(_name(shard.shard_id, position) for position in shard.positions):
            shard.passed.update(place for place, count in enumerate(shard.deliveries) if count)

    def carry_out(self, shard_id: str, records: Sequence[Record], transaction: Cursor) -> None:
        """The transfers of some records."""
        for record in records:
            name = _name(shard_id, (int(record.sequence_number), record.sub_sequence_number))
            for account, change in _changes(name):
                transaction.execute(
                    "UPDATE accounts SET balance = balance + ? WHERE number = ?", (change, account)
                )
            transaction.execute("INSERT INTO transfers VALUES (?)", (name,))

    def missing(self, before_s: float = inf) -> int:
        """How many records that were written before are for the children, and not carried out."""
        return len(self._owed(before_s) - self._applied())

    def _owed(self, before_s: float) -> set[str]:
        return {
            _name(shard.shard_id, position)
            for shard in self._truth.wanted
            for aside in [shard.unowed | shard.passed]
            for place, position in enumerate(shard.positions)
            if shard.written_at_s[place] < before_s
            and place >= shard.done_before
            and place not in aside
            and not self.is_aside(shard.shard_id, place)
        }

    def _applied(self) -> set[str]:
        return {name for (name,) in self._database.execute("SELECT record FROM transfers")}

    def judge(self, before_s: float = inf) -> None:
        """What must be so at the very end; of records that were written before."""
        if self._sum("SELECT sum(balance) FROM accounts") != _ACCOUNTS * _BALANCE:
            report("money_made", "the balances do not add up any more")
        twice = self._database.execute(
            "SELECT record FROM transfers GROUP BY record HAVING count(*) > 1"
        ).fetchall()
        if twice:
            report(
                "transfer_twice",
                f"carried out more than once: {[row[0] for row in twice[:5]]}, {len(twice)} in all",
            )
        lost = sorted(self._owed(before_s) - (applied := self._applied()))
        if lost:
            report("transfer_lost", f"not carried out: {lost[:5]}, {len(lost)} in all")
        expected = [_BALANCE] * _ACCOUNTS
        for name in applied:
            for account, change in _changes(name):
                expected[account] += change
        balances = [row[0] for row in self._database.execute("SELECT balance FROM accounts ORDER BY number")]
        if balances != expected:
            report("wrong_balance", f"the balances are {balances}, not {expected}")

    def _sum(self, sql: str) -> int:
        value: int = self._database.execute(sql).fetchone()[0]
        return value


def _name(shard_id: str, position: Position) -> str:
    return f"{shard_id} {position}"


def _changes(name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two accounts, and what a transfer makes of them."""
    number = crc32(name.encode())
    return (number % _ACCOUNTS, -(number % 97 + 1)), (number // 10 % _ACCOUNTS, number % 97 + 1)


class _Shared(SqliteStore):
    """The production store, over the one database of the run."""

    def __init__(self, database: sqlite3.Connection) -> None:
        super().__init__("", application="bank")
        self._connect = lambda: database

    def close(self) -> None:
        """Others use it."""
