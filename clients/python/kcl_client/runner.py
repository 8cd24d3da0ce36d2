"""`run`: the main function of a record processor's program.

Owns the process: its descriptors, its signals, its exit code. What happens between the daemon and the processor is
`session`.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Final

from kcl_client.callbacks import AsyncCallbacks, Callbacks, PlainCallbacks
from kcl_client.checkpointer import AsyncCheckpointer, Checkpointer
from kcl_client.plain import PlainRuntime, complete
from kcl_client.processor import AsyncRecordProcessor, RecordProcessor
from kcl_client.session import ProcessorFailed, Session
from kcl_client.stdio import Pipes, take_over
from kcl_protocol.errors import ProtocolError

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
    from kcl_client import asynchronous  # noqa: PLC0415 - asyncio costs more start-up time than all the rest

    async def main() -> int:
        runtime = asynchronous.AsyncRuntime(asynchronous.AsyncReader(pipes.source).read, pipes.write)
        session = Session(runtime, max_line_bytes=max_line_bytes)
        callbacks = AsyncCallbacks(processor, AsyncCheckpointer(session.store))
        return await _serve(session, callbacks, pipes)

    return asynchronous.run_until_complete(main())


async def _serve(session: Session, callbacks: Callbacks, pipes: Pipes) -> int:
    """The exit code. The daemon sees our end only after the traceback is out, for it may kill us then."""
    try:
        await session.serve(callbacks)
    except ProcessorFailed as failure:
        _report(failure)
        return EXIT_USER_ERROR
    except ProtocolError as error:
        sys.stderr.write(f"kcl_client: the conversation with the daemon broke: {error}\n")
        return EXIT_PROTOCOL_ERROR
    finally:
        pipes.close()
    return 0


def _report(failure: ProcessorFailed) -> None:
    error = failure.__cause__
    assert error is not None
    sys.stderr.write(
        f"kcl_client: {failure.action} is not done, its records will come again: the processor raised\n"
    )
    sys.excepthook(type(error), error, error.__traceback__)  # where error trackers listen


def _block(seconds: float) -> None:
    threading.Event().wait(seconds)
