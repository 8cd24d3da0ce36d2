"""Takes relays in: a Unix socket, a thread for each shard. Those of other hosts come through the gate.

Owns the socket, the threads and the list of conversations. What is said is known to `conversation`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kcl_spark.accepting import accept
from kcl_spark.control import Tell
from kcl_spark.conversation import Conversation, ShardState
from kcl_spark.wire import RelayGone, Wire, shut

_BACKLOG: Final = 1024

Open = Callable[[Iterator[bytes], Callable[[bytes], None]], Conversation]


class Listener:
    """Accepts relays until it is closed.

    Args:
        path: of the socket; only this user may connect.
        converse: makes the conversation for a new relay.
        tell: the log.
        failed: called with what went wrong in a thread where that is our fault or must stop the engine.
    """

    def __init__(self, path: Path, converse: Open, tell: Tell, failed: Callable[[Exception], None]) -> None:
        self._path = path
        self._converse = converse
        self._tell = tell
        self._failed = failed
        self._lock = threading.Lock()
        self._open: dict[socket.socket, Conversation] = {}
        self._ended: dict[str, ShardState] = {}
        self._closed = False
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound under another name: who finds the socket can connect.
        young = path.with_name(f".{path.name}.{os.getpid()}")
        young.unlink(missing_ok=True)
        self._socket.bind(str(young))
        young.chmod(0o600)
        self._socket.listen(_BACKLOG)
        young.rename(path)
        threading.Thread(target=self._accept, name="kcl-accept", daemon=True).start()

    def states(self) -> list[ShardState]:
        """Every shard that is or was served."""
        with self._lock:
            running = [each.state for each in self._open.values() if each.state.shard_id]
            known = {state.shard_id for state in running}
            return running + [state for name, state in self._ended.items() if name not in known]

    @property
    def count(self) -> int:
        """Relays that are connected now."""
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        """Take no more, and break off what is under way."""
        self._closed = True
        self._path.unlink(missing_ok=True)
        with self._lock:
            sockets = [self._socket, *self._open]
        for each in sockets:
            shut(each)
        self._socket.close()

    def serve(self, relay: socket.socket) -> None:
        """Serve a connection to its end; it is closed then."""
        wire = Wire(relay)
        with relay:
            conversation = self._converse(wire.lines(), wire.send)
            with self._lock:
                self._open[relay] = conversation
            if self._closed:
                shut(relay)
            try:
                conversation.run()
            except RelayGone:
                self._tell("info", "relay_gone", shard_id=conversation.state.shard_id)
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                self._failed(error)
            finally:
                wire.close()
                with self._lock:
                    del self._open[relay]
                    if conversation.state.ended:
                        self._ended[conversation.state.shard_id] = conversation.state

    def _accept(self) -> None:
        accept(
            self._socket,
            lambda relay, _who: self.serve(relay),
            is_closed=lambda: self._closed,
            tell=self._tell,
        )
