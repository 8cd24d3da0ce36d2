"""`run`: the main function of a record processor's program.

Owns the process: its descriptors, its signals, its exit code. What happens between the daemon and the processor is
`session`.

Takes stdin and stdout away from the user's code, so that nothing it prints can reach the daemon.

Owns the descriptors of this process: after `take_over` the protocol runs over private ones, which programs started by
the user do not inherit; descriptor 1 is stderr, so `print`, C libraries and grandchildren all end up in the daemon's log;
descriptor 0 is empty. Knows nothing of messages. POSIX only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from fcntl import F_DUPFD_CLOEXEC, fcntl
from io import TextIOWrapper
from typing import Final

from kcl_client._processor import (
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Checkpointer,
    PlainRuntime,
    RecordProcessor,
    complete,
)
from kcl_client._session import AsyncCallbacks, Callbacks, PlainCallbacks, ProcessorFailed, Session
from kcl_protocol.errors import ProtocolError

READ_BYTES: Final = 256 * 1024
"""Most that one read takes; a pipe rarely holds more at a time than 64 KiB."""
_FIRST_PRIVATE_DESCRIPTOR: Final = 3  # never 0-2, even where the process was started with one of them closed
_CLOSED: Final = -1


class Pipes:
    """The two private descriptors of the protocol.

    Args:
        source: where the daemon's bytes come from.
        sink: where ours go to.
    """

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self._sink = sink
        self._writing = threading.Lock()

    def read(self) -> bytes:
        """The daemon's next bytes, blocking; b"" once it has closed its end."""
        return os.read(self.source, READ_BYTES)

    def write(self, data: bytes) -> None:
        """Send all of it in one piece, blocking; messages are so small that a pipe takes them at once. From any thread.

        Raises:
            BrokenPipeError: the daemon has closed its end, or we have closed ours.
        """
        if self._sink == _CLOSED:
            raise BrokenPipeError("the connection to the daemon is closed in this process")
        with self._writing:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._sink, rest) :]

    def close(self) -> None:
        """Let the daemon see the end; a second call does nothing."""
        for descriptor in (self.source, self._sink):
            if descriptor != _CLOSED:
                os.close(descriptor)
        self.source = self._sink = _CLOSED
        if _in_use == [self]:
            _in_use.clear()


_in_use: list[Pipes] = []


def pipes_in_use() -> Pipes | None:
    """The pipes to the daemon; None before `take_over`, after they were closed, and in a forked copy of this process."""
    return _in_use[0] if _in_use else None


def take_over() -> Pipes:
    """Move the protocol to private descriptors and give user code harmless ones; once in the life of a process."""
    pipes = Pipes(_private_copy(0), _private_copy(1))
    _in_use[:] = [pipes]
    # A forked copy of this process must not keep the daemon waiting for the end of our stdout.
    os.register_at_fork(after_in_child=pipes.close)
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a stderr
        os.dup2(empty, 1)
    os.close(empty)
    if isinstance(sys.stdout, TextIOWrapper):
        # Line by line, as a log needs it. What the locale cannot say is escaped: a print must not end the processor.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return pipes


def _private_copy(descriptor: int) -> int:
    copy = fcntl(descriptor, F_DUPFD_CLOEXEC, _FIRST_PRIVATE_DESCRIPTOR)
    os.set_blocking(copy, True)
    return copy


EXIT_USER_ERROR: Final = 70
"""Exit code after an exception in the processor (EX_SOFTWARE of sysexits.h)."""
EXIT_PROTOCOL_ERROR: Final = 76
"""Exit code where the daemon said what the protocol does not allow (EX_PROTOCOL of sysexits.h)."""


def run(processor: RecordProcessor | AsyncRecordProcessor, *, max_line_bytes: int = sys.maxsize) -> None:
    """Serve the daemon over stdin and stdout until it closes them; then return.

    From here on `print`, descriptor 1 and the stdout of programs started by the processor are stderr, and stdin is
    empty. Ctrl-C is ignored: it is the daemon's to answer. Call it once in a process, from the main thread.

    Where the daemon goes away in the middle of an action, the action goes on to its end; a checkpoint then raises
    CheckpointShutdown, nothing more is called, and `run` returns.

    Args:
        processor: an instance of your class.
        max_line_bytes: longest line taken from the daemon. A batch is one line: 14 MB for a full one, and more for
            aggregated records.

    Raises:
        SystemExit: `EXIT_USER_ERROR` after an exception in the processor, whose traceback is on stderr and whose action
            was not reported as done; `EXIT_PROTOCOL_ERROR`; or the processor's own `sys.exit`.
        TypeError: that is not an instance of a processor class.
    """
    if not isinstance(processor, RecordProcessor | AsyncRecordProcessor):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        raise TypeError(
            f"an instance of RecordProcessor or AsyncRecordProcessor is needed, not {processor!r}"
        )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipes = take_over()
    if isinstance(processor, AsyncRecordProcessor):
        code = _run_async(processor, pipes, max_line_bytes)
    else:
        code = _run_plain(processor, pipes, max_line_bytes)
    if code:
        raise SystemExit(code)


def _run_plain(processor: RecordProcessor, pipes: Pipes, max_line_bytes: int) -> int:
    runtime = PlainRuntime(pipes.read, pipes.write, sleep=_block)
    session = Session(runtime, max_line_bytes=max_line_bytes)
    callbacks = PlainCallbacks(processor, Checkpointer(session.store))
    return complete(_serve(session, callbacks, pipes))


def _run_async(processor: AsyncRecordProcessor, pipes: Pipes, max_line_bytes: int) -> int:
    from kcl_client import _asynchronous  # noqa: PLC0415 - asyncio costs more start-up time than all the rest

    async def main() -> int:
        runtime = _asynchronous.AsyncRuntime(_asynchronous.AsyncReader(pipes.source).read, pipes.write)
        session = Session(runtime, max_line_bytes=max_line_bytes)
        callbacks = AsyncCallbacks(processor, AsyncCheckpointer(session.store))
        return await _serve(session, callbacks, pipes)

    return _asynchronous.run_until_complete(main())


async def _serve(session: Session, callbacks: Callbacks, pipes: Pipes) -> int:
    """The exit code. The daemon sees our end only after the traceback is out, for it may kill us then."""
    try:
        await session.serve(callbacks)
    except ProcessorFailed as failure:
        _report_result(failure)
        return EXIT_USER_ERROR
    except ProtocolError as error:
        sys.stderr.write(f"kcl_client: the conversation with the daemon broke: {error}\n")
        return EXIT_PROTOCOL_ERROR
    finally:
        pipes.close()
    return 0


def _report_result(failure: ProcessorFailed) -> None:
    error = failure.__cause__
    assert error is not None
    sys.stderr.write(
        f"kcl_client: {failure.action} is not done, its records will come again: the processor raised\n"
    )
    sys.excepthook(type(error), error, error.__traceback__)  # where error trackers listen


def _block(seconds: float) -> None:
    threading.Event().wait(seconds)
