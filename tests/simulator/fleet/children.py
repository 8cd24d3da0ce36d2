"""The ports Children and Child over scripted processes: pipes, exits and signals without an operating system.

Owns what the kernel would own. Knows nothing of what the processes say (`program`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, assert_never

import anyio

from kcl_daemon.errors import ChildExited, ChildStartFailed
from kcl_daemon.leases.lease import ShardId, lease_key_of
from kcl_daemon.ports import ChildLane, StreamRef
from kcl_protocol.codec import FRAME_START, decode_daemon_line, decode_frame_header
from kcl_protocol.conversation import LineFramer
from kcl_protocol.errors import ProtocolError
from kcl_protocol.frames import framed_records
from kcl_protocol.messages import DaemonMessage
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.faults.life import Life
from tests.simulator.fleet.bank_program import BankProgram
from tests.simulator.fleet.landing_program import LandingProgram
from tests.simulator.fleet.program import (
    READ,
    CloseStdout,
    Exit,
    ExitLater,
    Hang,
    Print,
    Program,
    Read,
    Script,
    Wait,
)
from tests.simulator.loop import Promise, Timer, Wake, current_loop, now
from tests.simulator.rules.deliveries import Deliveries, Incarnation
from tests.simulator.violation import report

_PIPE_BYTES: Final = 65_536
_PIPE_DELAY_S: Final = 0.0005
_START_S: Final = (0.02, 0.3)
_LINE_MOST_BYTES: Final = 1 << 30
_SIGKILL: Final = -9
_SIGTERM: Final = -15
_CRASHED: Final = 1


class SimChild:
    """Port Child: one scripted process."""

    def __init__(
        self,
        identity: Incarnation,
        script: Script,
        life: Life,
        *,
        ignores_term: bool,
        lives_on_s: float | None = None,
    ) -> None:
        self._lives_on_s = lives_on_s
        self.identity = identity
        self.status: int | None = None
        self._script = script
        self._life = life
        self._ignores_term = ignores_term
        self._framer = LineFramer(_LINE_MOST_BYTES)
        self._unread: deque[tuple[DaemonMessage, int, float]] = deque()
        self._unread_bytes = 0
        self._stdin_closed = False
        self._input_is_over = False
        self._is_reading = False
        self._read = READ
        self._timers: list[Timer] = []
        self._resumes: Timer | None = None
        self._stdout: list[bytes] = []
        self._stdout_closed = False
        self._heard: Wake | None = None
        self._drained: Promise[None] = Promise()
        self._exited: Promise[int] = Promise()
        self._first_read: Promise[None] = Promise()
        self._is_paused = self._is_due = False

    @property
    def pid(self) -> int:
        """A number that no other child of the run has."""
        return 1000 + self.identity.number

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """It writes nothing there."""
        return ()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.status is None

    def begin(self) -> None:
        """Run the script from its start."""
        self._resumes = current_loop().after(_PIPE_DELAY_S, self._resume)

    async def send(self, line: bytes) -> None:
        """Write to its stdin; waits while the pipe is full."""
        await self._life.go_on()
        if not self.is_running or self._stdin_closed:
            raise ChildExited("writing", self.status)
        self._unread_bytes += len(line)
        current_loop().after(_PIPE_DELAY_S, self._arrived, line)
        while self._unread_bytes > _PIPE_BYTES and self.is_running:
            self._drained = Promise()
            await self._drained.wait()
            self._life.ensure_alive()

    async def receive(self) -> bytes:
        """What it printed; empty at the end."""
        self._life.ensure_alive()
        while not self._stdout and not self._stdout_closed:
            self._heard = Wake(loop=current_loop())
            await self._heard
            self._life.ensure_alive()
        data = b"".join(self._stdout)
        self._stdout.clear()
        return data

    async def until_reading(self) -> None:
        """It has imported what it needs, and reads."""
        self._life.ensure_alive()
        await self._first_read.wait()
        self._life.ensure_alive()

    async def close_stdin(self) -> None:
        """End of input."""
        if self._life.is_dead or self._stdin_closed:
            return
        self._stdin_closed = True
        current_loop().after(_PIPE_DELAY_S, self._input_ended)

    async def wait(self) -> int:
        """Its exit status."""
        self._life.ensure_alive()
        status = await self._exited.wait()
        self._life.ensure_alive()
        return status

    def terminate(self) -> None:
        """SIGTERM."""
        if not self._life.is_dead and not self._ignores_term:
            current_loop().after(_PIPE_DELAY_S, self.end, _SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        if not self._life.is_dead:
            current_loop().after(_PIPE_DELAY_S, self.end, _SIGKILL)

    async def aclose(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._life.is_dead:
            return
        self.kill()
        with anyio.CancelScope(shield=True):
            await self._exited.wait()

    def pause(self) -> None:
        """SIGSTOP. What it has sent still arrives."""
        self._is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if not self._is_paused:
            return
        self._is_paused, is_due, self._is_due = False, self._is_due, False
        current_loop().after(0.0, self._resume if is_due else self._poll)

    def end(self, status: int) -> None:
        """The process is gone."""
        if self.status is not None:
            return
        self.status = status
        for timer in (*self._timers, self._resumes):
            if timer is not None:
                timer.cancel()
        if self._lives_on_s is None:
            self._script.close()
        else:
            current_loop().after(self._lives_on_s, self._live_on)
        self._close_stdout()
        self._drained.resolve(None)
        self.identity.is_gone = True
        self._exited.resolve(status)

    def _live_on(self) -> None:
        """Up to where it would read: what it did was the work of another process, which has not noticed yet."""
        try:
            step = self._script.send(None)
        except (StopIteration, Exit):
            return
        current_loop().after(step.seconds if isinstance(step, Wait) else 0.0, self._live_on)

    def _arrived(self, line: bytes) -> None:
        try:
            if line.startswith(FRAME_START):
                head, _, body = line.partition(b"\n")
                framed = framed_records(decode_frame_header(head), body)
                given = replace(framed, records=list(framed.records))
                self._unread.append((given, len(line), now()))
                line = b""
            for piece in self._framer.feed(line):
                assert isinstance(piece, bytes)
                self._unread.append((decode_daemon_line(piece), len(line), now()))
        except ProtocolError as malformed:
            report("daemon_broke_protocol", f"{self.identity}: {malformed}")
        self._poll()

    def _input_ended(self) -> None:
        self._input_is_over = True
        self._poll()

    def _poll(self) -> None:
        if self._is_reading and not self._is_paused:
            self._is_reading = False
            self._run(wants_message=True)

    def _next_message(self) -> DaemonMessage | None:
        if not self._unread:
            return None
        message, size_bytes, self.identity.handed_s = self._unread.popleft()
        self._unread_bytes -= size_bytes
        self._drained.resolve(None)
        return message

    def _resume(self) -> None:
        if self._is_paused:
            self._is_due = True
        else:
            self._run(wants_message=False)

    def _run(self, *, wants_message: bool) -> None:
        """Run the script up to where it has to wait; then the worker hears what it printed."""
        self._run_script(wants_message=wants_message)
        if self._stdout:
            self._be_heard()

    def _run_script(self, *, wants_message: bool) -> None:
        message: DaemonMessage | None = None
        while self.status is None:
            if wants_message:
                self._first_read.resolve(None)
                if not self._unread and not self._input_is_over and not self._read.is_late:
                    self._is_reading = True
                    return
                self._read.is_late &= not self._unread and not self._input_is_over
                message = self._next_message()
            try:
                step = self._script.send(message)
            except StopIteration:
                self.end(0)
                return
            except Exit as exit_:
                self.end(exit_.status)
                return
            message, wants_message = None, isinstance(step, Read)
            if isinstance(step, Read):
                self._read = step
                if step.within_s is not None:
                    current_loop().after(step.within_s, self._grows_late, step)
            if isinstance(step, Hang):
                return
            if isinstance(step, Wait):
                self._resumes = current_loop().after(step.seconds, self._resume)
                return
            self._do(step)

    def _grows_late(self, read: Read) -> None:
        read.is_late = True
        self._poll()

    def _do(self, step: Read | Print | CloseStdout | ExitLater) -> None:
        match step:
            case Print(data):
                if not self._stdout_closed:
                    self._stdout.append(data)
            case CloseStdout():
                self._close_stdout()
            case ExitLater(seconds):
                self._timers.append(current_loop().after(seconds, self.end, _CRASHED))
            case Read():
                pass
            case _:
                assert_never(step)

    def _close_stdout(self) -> None:
        self._stdout_closed = True
        self._be_heard()

    def _be_heard(self) -> None:
        if self._heard is not None:
            self._heard.wake()


class SimChildren:
    """Port Children of one worker."""

    def __init__(
        self, life: Life, *, children_plan: ChildrenPlan, chance: Chance, deliveries: Deliveries
    ) -> None:
        self._life = life
        self._children_plan = children_plan
        self._chance = chance
        self._deliveries = deliveries
        self._running: list[SimChild] = []
        self._began_s = now()
        self.started = 0
        self.are_paused = False
        life.on_death(self._orphaned)

    @property
    def running(self) -> list[SimChild]:
        """The children that have not ended."""
        self._running = [child for child in self._running if child.is_running]
        return self._running

    def pause(self) -> None:
        """SIGSTOP for all of them, and for what works beside them."""
        self.are_paused = True
        for child in self.running:
            child.pause()

    def resume(self) -> None:
        """SIGCONT for all of them."""
        self.are_paused = False
        for child in self.running:
            child.resume()

    async def start(
        self, shard_id: ShardId, stream: StreamRef | None = None, lane: ChildLane | None = None
    ) -> SimChild:
        """Start a child; ChildStartFailed where the plan says so."""
        key = lease_key_of(None if stream is None else stream.identity, shard_id)
        self._life.ensure_alive()
        await anyio.sleep(self._chance.uniform(*_START_S))
        self._life.ensure_alive()
        if self._chance.happens(self._children_plan.start_fails):
            raise ChildStartFailed("no such program")
        number = None if lane is None else lane.number
        for child in self.running:
            if (child.identity.shard_id, child.identity.lane) == (key, number):
                report("second_child", f"{self._life.worker_id} starts a child beside {child.identity}")
        return self._born(self._deliveries.started(key, self._life.worker_id, lane))

    def _born(self, identity: Incarnation) -> SimChild:
        identity.process_s = self._began_s
        chance = self._chance.fork(f"child-{identity.number}")
        behaviour = self._children_plan.draw(chance)
        kind = Program if self._children_plan.bank is None else BankProgram
        kind = kind if self._children_plan.landing is None else LandingProgram
        program = kind(
            identity,
            behaviour=behaviour,
            children_plan=self._children_plan,
            chance=chance,
            deliveries=self._deliveries,
        )
        landing = self._children_plan.landing
        identity.works_between = landing is not None
        child = SimChild(
            identity,
            program.run(),
            self._life,
            ignores_term=behaviour.ignores_term,
            lives_on_s=None if landing is None else landing.outlives_s(chance),
        )
        self._running.append(child)
        self.started += 1
        child.begin()
        return child

    def _orphaned(self) -> None:
        """The worker was killed: the kernel signals its children."""
        for child in self.running:
            current_loop().after(self._chance.uniform(0.0, 0.05), child.end, _SIGKILL)
