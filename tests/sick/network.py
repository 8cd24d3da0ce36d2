"""A network in which a service refuses some operations of workers, and answers whoever else asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kcl_daemon.errors import AwsError
from tests.simulator.chance import Chance
from tests.simulator.faults.life import Life, Service
from tests.simulator.faults.network import Network
from tests.simulator.loop import current_loop

T = TypeVar("T")

WATCHER: Final = "watcher"
_ANSWERS_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a service refuses.

    Args:
        error: which, of an operation.
        service: None: each.
        operations: none: each.
        table: a part of the name of the only table; empty: each.
        share: of the calls.
        of_all: also what the watcher asks for.
        worker: the only one; empty: each.
    """

    error: Callable[[str], AwsError]
    service: Service | None = None
    operations: tuple[str, ...] = ()
    table: str = ""
    share: float = 1.0
    of_all: bool = False
    worker: str = ""

    def takes(self, life: Life, service: Service, operation: str, table: str) -> bool:
        """Whether it is about this call."""
        return (
            self.service in {None, service}
            and operation in (self.operations or (operation,))
            and self.table in table
            and (self.of_all or life.worker_id != WATCHER)
            and self.worker in {"", life.worker_id}
        )


@dataclass(slots=True)
class Refusals:
    """Those of now; shared by all."""

    now: list[Refusal] = field(default_factory=list[Refusal])


class SickNetwork(Network):
    """Of one table, or of all that has no table."""

    def __init__(self, chance: Chance, refusals: Refusals, table: str = "") -> None:
        super().__init__(chance)
        self._refusals = refusals
        self._table = table

    def of(self, table: str) -> SickNetwork:
        """The way to a table."""
        return SickNetwork(self.chance, self._refusals, table)

    async def call(
        self,
        life: Life,
        service: Service,
        operation: str,
        effect: Callable[[], T],
        *,
        writes: bool = False,
    ) -> T:
        """As the network does, unless it is refused."""
        for refusal in self._refusals.now:
            if refusal.takes(life, service, operation, self._table) and self.chance.happens(refusal.share):
                await life.go_on()
                await current_loop().pause(_ANSWERS_S)
                life.ensure_alive()
                raise refusal.error(operation)
        return await super().call(life, service, operation, effect, writes=writes)
