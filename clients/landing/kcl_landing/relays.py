"""The other end of the relays: a socket, and a thread for each shard."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import MsgspecError

from kcl_landing.control import EmitEvent, monotonic_s, pause
from kcl_landing.records import Message, read_frame, read_line
from kcl_protocol.conversation import ChildSide
from kcl_protocol.errors import ProtocolError
from kcl_protocol.messages import ChildMessage

_READ_BYTES: Final = 256 * 1024
_BACKLOG: Final = 1024
_PAUSE_S: Final = 1.0


class RelayGone(Exception): ...


class RelayMalformed(Exception):
    """Only this connection must end."""


class NothingYet(Exception): ...


def shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def listen(path: Path) -> socket.socket:
    """For this user: renamed once its mode is set."""
    path.unlink(missing_ok=True)
    young = path.with_name(f".{path.name}.{os.getpid()}")
    young.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(young))
    young.chmod(0o600)
    listening.listen(_BACKLOG)
    young.rename(path)
    return listening


def accept_in_background(
    listening: socket.socket,
    serve: Callable[[socket.socket, Any], object],
    *,
    name: str,
    is_closed: Callable[[], bool],
    log_event: EmitEvent,
) -> None:
    """A lack of descriptors or threads only delays."""

    def accept() -> None:
        while not is_closed():
            try:
                connection, peer = listening.accept()
            except OSError as error:
                if not is_closed():
                    _log_and_wait(error, log_event)
                continue
            try:
                threading.Thread(target=serve, args=(connection, peer), name="kcl-shard", daemon=True).start()
            except RuntimeError as error:
                connection.close()
                _log_and_wait(error, log_event)

    threading.Thread(target=accept, name=name, daemon=True).start()


def _log_and_wait(error: Exception, log_event: EmitEvent) -> None:
    log_event("warning", "relay_not_accepted", error=str(error))
    pause(_PAUSE_S)


class RelayConnection:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._side = ChildSide(read_line, max_line_bytes=sys.maxsize, decode_frame=read_frame)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def receive(self, until_s: float | None = None) -> Message | None:
        """None: the relay is gone. Raises RelayMalformed, NothingYet."""
        while (message := self._next()) is None:
            if until_s is not None and not self._poll.poll(max(0.0, until_s - monotonic_s()) * 1000):
                raise NothingYet
            until_s = None
            # At once: its thread would wake up for each piece.
            missing = self._side.missing_bytes
            size, flags = (missing, socket.MSG_WAITALL) if missing > _READ_BYTES else (_READ_BYTES, 0)
            try:
                data = self._connection.recv(size, flags)
            except (OSError, ValueError):
                return None
            if not data:
                return None
            self._side.receive_data(data)
        return message

    def _next(self) -> Message | None:
        try:
            return self._side.next_message()
        except (ProtocolError, MsgspecError, ValueError) as error:
            raise RelayMalformed(str(error)) from error

    def is_gone(self) -> bool:
        """Ask while the daemon waits for us: only its end can come."""
        try:
            return bool(self._poll.poll(0)) and not self._connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def send(self, message: ChildMessage) -> None:
        try:
            self._connection.sendall(self._side.send_data(message))
        except (OSError, ValueError) as error:
            raise RelayGone from error


class RelayState(Protocol):
    """`ended`: that is checkpointed."""

    shard_id: str
    ended: bool


State = TypeVar("State", bound=RelayState)


class Conversation(Protocol[State]):
    state: State

    def run(self) -> None: ...


class RelayListener(Generic[State]):
    """`failed` gets what must stop the process. `listening`: the socket of another process."""

    def __init__(
        self,
        path: Path,
        converse: Callable[[RelayConnection], Conversation[State]],
        log_event: EmitEvent,
        failed: Callable[[Exception], None],
        listening: socket.socket | None = None,
    ) -> None:
        self._path = path
        self._converse = converse
        self._log_event = log_event
        self._failed = failed
        self._lock = threading.Lock()
        self._open: dict[socket.socket, Conversation[State]] = {}
        self._ended: dict[str, State] = {}
        self._closed = False
        self._is_ours = listening is None
        self._socket = listen(path) if listening is None else listening
        accept_in_background(
            self._socket,
            lambda relay, _who: self.serve(relay),
            name="kcl-accept",
            is_closed=lambda: self._closed,
            log_event=log_event,
        )

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def states(self) -> list[State]:
        with self._lock:
            running = [each.state for each in self._open.values() if each.state.shard_id]
            known = {state.shard_id for state in running}
            return running + [state for name, state in self._ended.items() if name not in known]

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        self._closed = True
        if self._is_ours:
            self._path.unlink(missing_ok=True)
        with self._lock:
            sockets = [self._socket, *self._open]
        for each in sockets:
            shut(each)
        self._socket.close()

    def serve(self, relay: socket.socket) -> None:
        with relay:
            conversation = self._converse(RelayConnection(relay))
            with self._lock:
                self._open[relay] = conversation
            if self._closed:
                shut(relay)
            try:
                conversation.run()
            except RelayGone:
                self._log_event("info", "relay_gone", shard_id=conversation.state.shard_id)
            except RelayMalformed as error:
                shard_id = conversation.state.shard_id
                self._log_event("error", "relay_malformed", shard_id=shard_id, error=str(error))
            except Exception as error:  # noqa: BLE001 - a thread has no caller
                self._failed(error)
            finally:
                with self._lock:
                    del self._open[relay]
                    if conversation.state.ended:
                        self._ended[conversation.state.shard_id] = conversation.state
