"""The main function of a record processor's program. POSIX only.

The protocol gets private descriptors that child processes do not inherit. Descriptor 1 becomes stderr, so `print` and C
libraries cannot break the protocol; descriptor 0 is empty.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from fcntl import F_DUPFD_CLOEXEC, fcntl
from functools import partial
from io import TextIOWrapper
from typing import Final

from kcl_client._processor import (
    AsyncRecordProcessor,
    Checkpointer,
    PlainRuntime,
    RecordProcessor,
    check_processor,
    complete,
)
from kcl_client._session import READ_BYTES, Concurrency, Order, ProcessorFailed, Session, SessionOptions
from kcl_client._timed import TimedProcessor, TimedSession, input_within
from kcl_protocol.errors import ProtocolError

EXIT_USER_ERROR: Final = 70
"""After an exception in the processor (EX_SOFTWARE of sysexits.h)."""
EXIT_PROTOCOL_ERROR: Final = 76
"""After a message that the protocol does not allow (EX_PROTOCOL of sysexits.h)."""
_DEFAULTS: Final = Concurrency()
_FIRST_PRIVATE_DESCRIPTOR: Final = 3  # never 0-2, even if one of them is closed
_CLOSED: Final = -1
_FINISH_BATCHES: Final = "KCL_FINISH_BATCHES"
_PRELOAD_FD: Final = "KCL_PRELOAD_FD"
_FRAMES: Final = "KCL_FRAMES"
_REJECTS: Final = "KCL_REJECTS"


class Pipes:
    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self._sink = sink
        self._writing = threading.Lock()

    def read(self) -> bytes:
        return os.read(self.source, READ_BYTES)

    def write(self, data: bytes) -> None:
        """All bytes, blocking, from any thread; BrokenPipeError once either side has closed."""
        if self._sink == _CLOSED:
            raise BrokenPipeError("the connection to the daemon is closed in this process")
        with self._writing:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._sink, rest) :]

    def close(self) -> None:
        for descriptor in (self.source, self._sink):
            if descriptor != _CLOSED:
                os.close(descriptor)
        self.source = self._sink = _CLOSED
        if _in_use == [self]:
            _in_use.clear()


_in_use: list[Pipes] = []


def pipes_in_use() -> Pipes | None:
    """None before `take_over`, after `close`, and in a forked process."""
    return _in_use[0] if _in_use else None


def take_over() -> Pipes:
    pipes = Pipes(_private_copy(0), _private_copy(1))
    _in_use[:] = [pipes]
    # A forked process must not keep our stdout open, or the daemon would wait for its end.
    os.register_at_fork(after_in_child=pipes.close)
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(empty, 1)
    os.close(empty)
    if isinstance(sys.stdout, TextIOWrapper):
        # Line by line, for the log; escapes what the locale lacks, so that `print` cannot fail.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return pipes


def _private_copy(descriptor: int) -> int:
    copy = fcntl(descriptor, F_DUPFD_CLOEXEC, _FIRST_PRIVATE_DESCRIPTOR)
    os.set_blocking(copy, True)
    return copy


def run(
    processor: RecordProcessor | AsyncRecordProcessor,
    *,
    concurrency: int | None = None,
    order: Order = _DEFAULTS.order,
    checkpoint_every_s: float = _DEFAULTS.checkpoint_every_s,
    max_outstanding: int = _DEFAULTS.max_outstanding,
    max_outstanding_bytes: int = _DEFAULTS.max_outstanding_bytes,
    max_line_bytes: int = sys.maxsize,
) -> None:
    """Serve the daemon over stdin and stdout until it closes them; then return.

    From here on `print` and descriptor 1 go to stderr, also for programs started by the processor, and stdin is empty.
    Ctrl-C is ignored: the daemon handles it. Call it once in a process, from the main thread.

    With `childPreload`, `run` goes on in each child, forked from one process, which shares what was imported and made
    before. So make connections and threads in `initialize`.

    If the daemon goes away during an action, the action runs to its end; a checkpoint then raises CheckpointShutdown,
    no further method is called, and `run` returns.

    With `process_record`, a batch is answered while its records still run. Every `checkpoint_every_s` seconds and at
    each end the position below which every record is done is stored. If the daemon goes away or the lease is lost,
    running records are cancelled.

    Args:
        processor: an instance of your class.
        concurrency: how many records `process_record` works on at once; None is one. Other methods need no more.
        order: "key": records with the same partition key one after the other, in order. "none": no order.
        checkpoint_every_s: with `process_record`.
        max_outstanding: with this many delivered records from the first unfinished one on, no further batch is taken.
        max_outstanding_bytes: the same for the data (base64) of unfinished records.
        max_line_bytes: longest line or frame accepted from the daemon: 14 MB for a full batch, more for aggregated records.

    Raises:
        SystemExit: with `EXIT_USER_ERROR` after an exception in the processor, whose traceback is on stderr; with
            `EXIT_PROTOCOL_ERROR`; or the processor's own `sys.exit`.
        TypeError: `processor` is no processor, or `concurrency` is given and it has no `process_record`.
        ValueError: a number is too small.
    """
    check_processor(processor, concurrency)
    concurrently = Concurrency(
        1 if concurrency is None else concurrency,
        order,
        checkpoint_every_s,
        max_outstanding,
        max_outstanding_bytes,
        os.environ.get(_FINISH_BATCHES) == "true",
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload(processor)
    options = SessionOptions(max_line_bytes, _is_offered(_FRAMES), _is_offered(_REJECTS))
    pipes = take_over()
    if isinstance(processor, AsyncRecordProcessor):
        code = _run_async(processor, pipes, concurrently, options)
    else:
        code = _run_plain(processor, pipes, options)
    if code:
        raise SystemExit(code)


def _preload(processor: RecordProcessor | AsyncRecordProcessor) -> None:
    """Returns in each child forked from this process."""
    connection = os.environ.pop(_PRELOAD_FD, None)
    if connection is None:
        return
    from kcl_client._preload import serve

    if isinstance(processor, AsyncRecordProcessor):
        importlib.import_module("kcl_client._asynchronous")  # once, not in each child
    serve(int(connection))


def _is_offered(name: str) -> bool:
    return os.environ.get(name, "").isdecimal()


def _run_plain(processor: RecordProcessor, pipes: Pipes, options: SessionOptions) -> int:
    runtime = PlainRuntime(pipes.read, pipes.write, sleep=threading.Event().wait)
    if isinstance(processor, TimedProcessor):
        has_input_within = partial(input_within, pipes.source)
        session: Session[Checkpointer] = TimedSession(processor, runtime, has_input_within, options)
    else:
        session = Session(processor, Checkpointer, runtime, options)
    return complete(_exit_code(session.serve(), pipes))


def _run_async(
    processor: AsyncRecordProcessor, pipes: Pipes, concurrency: Concurrency, options: SessionOptions
) -> int:
    from kcl_client import _asynchronous, _concurrent  # asyncio costs more start-up time than all the rest

    async def main() -> int:
        read = partial(_asynchronous.read_when_ready, pipes.source)
        runtime = _asynchronous.AsyncRuntime(read, pipes.write)
        session = _concurrent.session_of(processor, runtime, concurrency, options)
        return await _exit_code(session.serve(), pipes)

    return _asynchronous.run_until_complete(main())


async def _exit_code(session: Coroutine[object, object, None], pipes: Pipes) -> int:
    """The pipes are closed after the traceback is written: the daemon may then kill us."""
    try:
        await session
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
    sys.excepthook(type(error), error, error.__traceback__)  # error trackers hook in here
