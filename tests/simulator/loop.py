"""The event loop in virtual time: when nobody can go on, the time jumps to the next timer.

Owns the time, the order in which everything runs, and which simulated process a callback belongs to. A process (a
`Lane`) can be held as SIGSTOP holds a real one: nothing of it runs until it is released, while the world and its
timers go on. Knows nothing of workers, tables or streams. With `handles` the only file
of the simulator that imports asyncio.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - this is an asyncio event loop
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from types import CoroutineType
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, cast

import anyio
import anyio.lowlevel

from tests.simulator.handles import Alarm, Callback
from tests.simulator.ordered import ordered_cancellation

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Timer = asyncio.TimerHandle

# That many rounds without the time going on are a loop that spins.
_ROUNDS_WITHOUT_PROGRESS: Final = 20_000
# Cancelled timers are swept out when they are the most of that many.
_TIMERS_WORTH_SWEEPING: Final = 512


class Deadlock(RuntimeError):
    """Raised when every task waits and no timer is set: nothing can ever happen again."""


class Livelock(RuntimeError):
    """Raised when tasks keep running without the time ever going on."""


class Lane:
    """Everything that runs inside one simulated process."""

    __slots__ = ("_held_back", "held", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = False
        self._held_back: list[asyncio.Handle] = []

    def hold(self) -> None:
        """Run nothing of this lane until `release`, as SIGSTOP does."""
        self.held = True
        current_loop().lanes_held.add(self)

    def release(self) -> None:
        """Let it go on where it was, as SIGCONT does; timers that came due in the meantime fire now."""
        self.held = False
        loop = current_loop()
        loop.lanes_held.discard(self)  # not by its name, which another process may have
        waiting, self._held_back = self._held_back, []
        loop.run_soon(waiting)

    def hold_back(self, handle: asyncio.Handle) -> None:
        """Keep a callback for later; for the loop only."""
        self._held_back.append(handle)


_LANE: ContextVar[Lane | None] = ContextVar("lane", default=None)


def current_lane() -> Lane | None:
    """The simulated process that runs now; None: the world does."""
    return _LANE.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """An asyncio loop without sockets or threads whose time is a number that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._sequence = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_cancelled = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._crash: BaseException | None = None
        self._idle_rounds = 0
        self._spawned: set[asyncio.Task[None]] = set()
        self._outside = Context()
        self.handles_run = 0
        self.lanes_held: set[Lane] = set()

    def time(self) -> float:
        """Virtual seconds since the start; `now_s` for those in a hurry."""
        return self.now_s

    def close(self) -> None:
        """Forget everything that was still to run, also the ends of generators that a violation left open."""
        self._timers.clear()
        for coroutine in (task.get_coro() for task in asyncio.all_tasks(self)):
            if isinstance(coroutine, Coroutine) and not isinstance(coroutine, CoroutineType):
                coroutine.close()
        super().close()

    def crash(self, error: BaseException) -> None:
        """End the whole run with this error as soon as the present callback returns; the first error wins."""
        if self._crash is None:
            self._crash = error

    def run_soon(self, handles: list[asyncio.Handle]) -> None:
        """Queue callbacks that were held back."""
        self._ready.extend(handles)

    def after(
        self, seconds: float, callback: Callable[[*Arguments], object], *arguments: *Arguments
    ) -> Timer:
        """Call something later that belongs to no process: the network, a producer, the plan of a scenario."""
        return self.call_at(self.now_s + seconds, callback, *arguments, context=self._outside)

    def spawn(self, limiter: Lane, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task as a process of its own; all that it starts belongs to the same lane."""
        context = copy_context()
        context.run(_LANE.set, limiter)
        task = self.create_task(run(), name=limiter.name, context=context)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard, context=self._outside)

    # What asyncio calls, made short: this is the hottest code of the simulator.

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """As asyncio's, without its checks."""
        handle = Callback(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's, in virtual time."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's, in virtual time; timers of the same moment fire in the order in which they were set."""
        timer = Alarm(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer))
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody can catch any more ends the run."""
        error = context.get("exception")
        self.crash(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > _TIMERS_WORTH_SWEEPING and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """Many rounds, until somebody stops the loop."""
        ready = self._ready
        while True:
            if not ready:
                self._advance()
            else:
                self._count_idle_round()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled and not (self.lanes_held and self._is_held_back(handle)):
                    self._run_handle(handle)
                if self._crash is not None:
                    error, self._crash = self._crash, None
                    raise error
            if self._stopping:  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # asyncio's own flag
                return

    def _count_idle_round(self) -> None:
        self._idle_rounds += 1
        if self._idle_rounds > _ROUNDS_WITHOUT_PROGRESS:
            self._idle_rounds = 0
            raise Livelock(
                f"at {self.now_s:.3f} s: time stands still while this runs: {list(self._ready)[:3]!r}"
            )

    def _is_held_back(self, handle: Any) -> bool:
        """Whether it belongs to a held lane, which keeps it then."""
        context: Context = handle._context
        limiter = context.get(_LANE)
        if limiter is None or not limiter.held:
            return False
        limiter.hold_back(handle)
        return True

    def _run_handle(self, handle: Any) -> None:
        """As `Handle._run`; the fields it reads are the same since Python 3.7."""
        self.handles_run += 1
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio; nobody else could see it
            self.crash(error)

    def go_on(self, wakeup: Callable[[Wake], object], wake: Wake, context: Context) -> None:
        """Let the task that waits for `wake` run now, later where its lane is held; for `Wake` only."""
        if self.lanes_held and self._is_held_back(Callback(wakeup, (wake,), self, context)):
            return
        if self._crash is not None:  # the run is over: nobody goes on
            self.call_soon(wakeup, wake, context=context)
            return
        self.handles_run += 1
        context.run(wakeup, wake)

    async def pause(self, seconds: float) -> None:
        """As asyncio's sleep."""
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        wake = Wake(loop=self)
        wake.timer = self.after(seconds, wake.wake)
        await wake

    def _advance(self) -> None:
        """Jump to the next timer and make ready what is due then."""
        if self._stopping:  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # asyncio's own flag
            return
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if not timers:
            raise Deadlock(f"at {self.now_s:.3f} s: every task waits and no timer is set")
        if timers[0][0] > self.now_s:
            self.now_s = timers[0][0]
            self._idle_rounds = 0
        while timers and timers[0][0] <= self.now_s:
            timer = heapq.heappop(timers)[2]
            if timer._cancelled:
                self._timers_cancelled -= 1
            else:
                self._ready.append(timer)


class Wake(asyncio.Future[None]):
    """A wait of one task that goes on at once when it is woken, not in the loop's next round: half the work.

    To be woken from outside of all tasks only: by a timer.

    Attributes:
        timer: goes when the wait is cancelled.
    """

    _wakeup: Callable[[Wake], object] | None = None
    _wakeup_context: Context
    timer: Timer | None = None

    def add_done_callback(self, fn: Callable[[Wake], object], /, *, context: Context | None = None) -> None:
        """As asyncio's, for the one task that waits."""
        assert self._wakeup is None, "only one task may wait"
        self._wakeup = fn
        self._wakeup_context = copy_context() if context is None else context

    def wake(self) -> None:
        """The wait is over; no effect on one that is over."""
        if not self.done():
            self.set_result(None)
            if self._wakeup is not None:
                current_loop().go_on(self._wakeup, self, self._wakeup_context)

    def cancel(self, msg: Any | None = None) -> bool:
        """As asyncio's: the task notices in the next round."""
        if not super().cancel(msg):
            return False
        if self.timer is not None:
            self.timer.cancel()
        if self._wakeup is not None:
            # Not the running loop: who clears a run away cancels what is left while none runs.
            self.get_loop().call_soon(self._wakeup, self, context=self._wakeup_context)
        return True


class Promise(Generic[T]):
    """A value that will be there once; any number of tasks may wait for it, each may be cancelled alone."""

    __slots__ = ("_error", "_value", "_waiters", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def resolve(self, value: T) -> None:
        """Give the value to all who wait and will wait; no effect when something was given before."""
        if not self.is_done:
            self._value = value
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Raise this in all who wait and will wait; no effect when something was given before."""
        if not self.is_done:
            self._error = error
            self._finish()

    async def wait(self) -> T:
        """The value, when it is there."""
        if not self.is_done:
            future = current_loop().create_future()
            self._waiters.append(future)
            await future
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _finish(self) -> None:
        self.is_done = True
        for future in self._waiters:
            if not future.done():
                future.set_result(None)
        self._waiters.clear()


# The loop of the running simulation; the bare function, because it is asked for a thousand times a virtual second.
current_loop = cast("Callable[[], VirtualLoop]", asyncio.get_running_loop)


def now() -> float:
    """Virtual seconds since the start of the running simulation."""
    return current_loop().now_s


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing, such as a call of an in-memory adapter."""
    try:
        while True:
            if coroutine.send(None) is not None:
                coroutine.close()
                raise RuntimeError("an in-memory adapter waited for something")
    except StopIteration as stop:
        value: T = stop.value
        return value


def run_virtual(main: Callable[[], Awaitable[T]]) -> T:
    """Run a simulation to its end; as fast as the machine allows, the same each time.

    Raises:
        Deadlock: nothing could happen any more before `main` was done.
        Livelock: tasks ran on without the time going on.
    """
    with ordered_cancellation():
        return anyio.run(main, backend_options={"loop_factory": VirtualLoop})
