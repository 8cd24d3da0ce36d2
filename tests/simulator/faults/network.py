"""The way between a worker and a service: how long a call takes, whether it arrives, whether its answer comes back.

Owns the fate of every call. A call's effect happens outside the worker, so it takes place even when the worker is
stopped, killed or has given up waiting. Knows nothing of what the calls mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from kcl_daemon.errors import AwsError, Throttled, Unavailable
from tests.simulator.chance import Chance
from tests.simulator.faults.life import Life, Service
from tests.simulator.loop import Wake, current_loop

T = TypeVar("T")

# How long a caller waits for a service that it does not reach.
_GIVE_UP_S: Final = (2.0, 12.0)


@dataclass(frozen=True, slots=True)
class Trouble:
    """How often calls to a service go wrong, as probabilities, and how long they take.

    Args:
        throttled: refused, nothing took effect.
        lost: never arrived; Unavailable.
        unanswered: took effect, but the caller gets Unavailable.
        belated: a write that takes effect only after its caller has got Unavailable.
        slow: takes `slow_s` instead of `latency_s`; takes effect at any moment in between.
        expired: of GetRecords: the iterator is too old.
        latency_s: of an ordinary call, from and to.
        slow_s: of a slow call, from and to.
        cut: of an event of a subscription: the connection breaks, and the event does not arrive.
        belated_s: how long after the caller's Unavailable the write takes effect, from and to.
    """

    throttled: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    belated: float = 0.0
    slow: float = 0.0
    expired: float = 0.0
    cut: float = 0.0
    latency_s: tuple[float, float] = (0.002, 0.02)
    slow_s: tuple[float, float] = (1.0, 30.0)
    belated_s: tuple[float, float] = (0.05, 20.0)


CALM: Final = Trouble()


class Fate(Enum):
    """What becomes of one call."""

    DONE = auto()
    SLOW = auto()
    THROTTLED = auto()
    LOST = auto()
    UNANSWERED = auto()
    BELATED = auto()


_FAULTS: Final = {
    Fate.DONE: "",
    Fate.SLOW: "call slow",
    Fate.THROTTLED: "call throttled",
    Fate.LOST: "call lost",
    Fate.UNANSWERED: "call not answered",
    Fate.BELATED: "write belated",
}


@dataclass(slots=True)
class WriteLimit:
    """Kill a worker at its n-th write from now.

    Args:
        writes_left: n.
        before: whether that write still takes effect (False) or not (True).
    """

    writes_left: int
    before: bool


@dataclass(slots=True)
class Network:
    """All calls of all workers; `trouble` may be changed at any time."""

    chance: Chance
    trouble: dict[Service, Trouble] = field(
        default_factory=lambda: {Service.DYNAMODB: CALM, Service.KINESIS: CALM}
    )
    write_limits: dict[str, WriteLimit] = field(default_factory=dict[str, WriteLimit])
    calls: dict[str, int] = field(default_factory=dict[str, int])
    faults: Counter[str] = field(default_factory=Counter[str])
    troubled: Counter[Service] = field(default_factory=Counter[Service])
    tables_ready_at_s: dict[str, float] = field(default_factory=dict[str, float])
    index_ready_at_s: float = 0.0

    def calm(self) -> None:
        """No more trouble from now; what is on its way still arrives."""
        self.trouble = dict.fromkeys(self.trouble, CALM)
        self.write_limits.clear()

    def iterator_expires(self) -> bool:
        """Whether the iterator of this GetRecords is too old."""
        expires = self.chance.happens(self.trouble[Service.KINESIS].expired)
        self.faults["iterator expired"] += expires
        return expires

    async def call(
        self,
        life: Life,
        service: Service,
        operation: str,
        effect: Callable[[], T],
        *,
        writes: bool = False,
    ) -> T:
        """Carry out a call as the network and the service treat it.

        Raises:
            Throttled: nothing took effect.
            Unavailable: a write may have taken effect, or may take effect later.
            AwsError: whatever the effect itself raises.
        """
        await life.go_on()
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if writes and self._dies_here(life, effect):
            life.ensure_alive()
        request = _Request(effect)
        fate = self._fate(life, service, writes=writes)
        self.faults[_FAULTS[fate]] += 1
        self.troubled[service] += fate is not Fate.DONE
        self._send(request, fate, self.trouble[service], operation)
        await request.wake
        life.ensure_alive()
        return request.answer()

    def _dies_here(self, life: Life, effect: Callable[[], object]) -> bool:
        limit = self.write_limits.get(life.worker_id)
        if limit is None:
            return False
        limit.writes_left -= 1
        if limit.writes_left > 0:
            return False
        del self.write_limits[life.worker_id]
        if not limit.before:
            effect()
        self.faults["worker killed at a write"] += 1
        life.kill()
        return True

    def _fate(self, life: Life, service: Service, *, writes: bool) -> Fate:
        if not life.reaches(service):
            return Fate.LOST
        trouble = self.trouble[service]
        draw = self.chance.random()
        if trouble is CALM:
            return Fate.DONE
        for probability, fate in (
            (trouble.throttled, Fate.THROTTLED),
            (trouble.lost, Fate.LOST),
            (trouble.unanswered, Fate.UNANSWERED),
            (trouble.belated, Fate.BELATED if writes else Fate.LOST),
            (trouble.slow, Fate.SLOW),
        ):
            if draw < probability:
                return fate
            draw -= probability
        return Fate.DONE

    def _send(self, request: _Request[T], fate: Fate, trouble: Trouble, operation: str) -> None:
        after = current_loop().after
        chance = self.chance
        soon = chance.uniform(*trouble.latency_s)
        if fate is Fate.DONE:
            after(soon, request.carry_out_and_answer)
            return
        failed = Unavailable("no answer", operation=operation)
        match fate:
            case Fate.SLOW:
                on_the_way, on_the_way_back = (
                    chance.uniform(*trouble.slow_s) / 2,
                    chance.uniform(*trouble.slow_s) / 2,
                )
                after(on_the_way, request.carry_out)
                after(on_the_way + on_the_way_back, request.report)
            case Fate.THROTTLED:
                after(soon, request.fail, Throttled("rate exceeded", operation=operation))
            case Fate.LOST:
                after(chance.uniform(*_GIVE_UP_S), request.fail, failed)
            case Fate.UNANSWERED:
                after(soon, request.carry_out)
                after(soon + chance.uniform(0.0, _GIVE_UP_S[1]), request.fail, failed)
            case Fate.BELATED:
                given_up = chance.uniform(*_GIVE_UP_S)
                after(given_up, request.fail, failed)
                after(given_up + chance.uniform(*trouble.belated_s), request.carry_out)


class _Request(Generic[T]):
    """One call on its way: its effect takes place, and its caller is told what came of it, or something else."""

    __slots__ = ("_effect", "_error", "_refused", "_result", "wake")

    def __init__(self, effect: Callable[[], T]) -> None:
        self.wake = Wake(loop=current_loop())
        self._effect = effect
        self._result: T | None = None
        self._refused: AwsError | None = None
        self._error: AwsError | None = None

    def carry_out(self) -> None:
        """The effect takes place; nobody is told yet."""
        try:
            self._result = self._effect()
        except AwsError as error:
            self._refused = error

    def report(self) -> None:
        """What came of the effect reaches the caller."""
        self._error = self._refused
        self.wake.wake()

    def carry_out_and_answer(self) -> None:
        """Both at once."""
        self.carry_out()
        self.report()

    def fail(self, error: AwsError) -> None:
        """The caller is told this, whatever comes of the effect."""
        self._error = error
        self.wake.wake()

    def answer(self) -> T:
        """What the caller was told."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # there, as there is no error
