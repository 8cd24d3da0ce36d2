"""The process of a host that writes its landing log.

The first line of stdin has the options, further ones rosters; its end, like SIGTERM, requests a stop. Exit codes: 0
stopped, 78 a person must fix something first, 1 an internal error. Of several processes the first has the socket, on
which all accept, and starts again what died.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import pyarrow as pa

from kcl_landing.control import EmitEvent, Refused, begin, epoch_ms, monotonic_s, take_over_stdout
from kcl_landing.conversation import Landing, Memory, ShardConversation, ShardState, figures, stated
from kcl_landing.log import Damaged, Format, Layout, LogInfo, Mark
from kcl_landing.manifests import ShardLog, known_log, open_log
from kcl_landing.marks import MARKS_S, HostObjects, Rosters, Stated, merged
from kcl_landing.relays import RelayListener
from kcl_landing.shard import retry_pause_s
from kcl_landing.store import LogStore, StoreTrouble, open_store, probe
from kcl_landing.trouble import StoreWatch
from kcl_landing.writer import Limits, LogAltered

EXIT_REFUSED: Final = 78
FIGURES_S: Final = 2.0
_TICK_S: Final = 0.1
_RESTART_S: Final = 1.0
_END_S: Final = 10.0
_FIGURES: Final = "landing_figures"
_MARKS: Final = "landing_marks"
_MALLOC: Final = ((-3, 32 * 2**20), (-1, 64 * 2**20))
"""M_MMAP_THRESHOLD, M_TRIM_THRESHOLD."""


class LanderOptions(msgspec.Struct, frozen=True):
    """`descriptor`: the listening socket of the first process."""

    uri: str
    application: str
    stream: str | None
    socket: str
    worker: str
    window_ms: int = 5_000
    max_bytes: int = 64 * 1024 * 1024
    layout: Layout = "log"
    format: Format = "parquet"
    processes: int = 1
    memory_bytes: int = 256 * 1024 * 1024
    endpoint: str = ""
    region: str = ""
    encryption: str | None = None
    descriptor: int | None = None


def run(
    options: LanderOptions,
    log_event: EmitEvent,
    stop: threading.Event,
    rosters: Rosters,
    *,
    store: LogStore | None = None,
) -> None:
    """Raises Refused."""
    watch = StoreWatch(log_event)
    store = store or open_store(
        options.uri, endpoint=options.endpoint, region=options.region, encryption=options.encryption
    )
    info = _open(store, options, watch, stop)
    if info is None:
        return
    failures: list[Exception] = []

    def fail(error: Exception) -> None:
        if not stop.is_set():
            failures.append(error)
        stop.set()

    shared = Landing(
        store,
        info,
        options.stream or "",
        Limits(options.window_ms, options.max_bytes),
        Memory(options.memory_bytes),
        watch,
        counters={},
        stopping=stop,
        log_event=log_event,
    )
    listening = None if options.descriptor is None else socket.socket(fileno=options.descriptor)
    listener: RelayListener[ShardState] = RelayListener(
        Path(options.socket), lambda relay: ShardConversation(relay, shared), log_event, fail, listening
    )
    others = _Others(options, listener.descriptor, log_event, stop) if listening is None else None
    if others is not None:
        objects = HostObjects(info, options.worker, options.window_ms, rosters)
        writing = (objects, store, partial(_stated, listener, others), watch, stop)
        threading.Thread(target=_write_marks, args=writing, daemon=True).start()
        mending = (store, info, rosters, log_event, stop)
        threading.Thread(target=_mend_ends, args=mending, daemon=True).start()
        log_event("info", "lander_ready", uri=options.uri, log_id=info.log_id, processes=options.processes)
    try:
        _report(listener, watch, others, log_event, stop)
    finally:
        stop.set()
        listener.close()
        if others is not None:
            others.end()
    if failures:
        raise failures[0]


def _stated(listener: RelayListener[ShardState], others: _Others) -> dict[str, Mark]:
    return merged([stated(listener.states()), *others.marks()])


def _write_marks(
    objects: HostObjects,
    store: LogStore,
    all_stated: Callable[[], Stated],
    watch: StoreWatch,
    stop: threading.Event,
) -> None:
    while not stop.wait(_TICK_S):
        if (put := objects.next(monotonic_s(), epoch_ms(), all_stated)) is None:
            continue
        try:
            store.replace(*put)
        except StoreTrouble as trouble:
            watch.failed(objects, trouble)
            objects.trouble(monotonic_s())
        else:
            watch.worked(objects)
            objects.done()


def _mend_ends(
    store: LogStore, info: LogInfo, rosters: Rosters, log_event: EmitEvent, stop: threading.Event
) -> None:
    """Once a minute where the leader is, and after each change."""
    while not stop.wait(_TICK_S):
        for stream, shard in rosters.take_parents():
            if stop.is_set():
                return
            warn = partial(_warn, log_event, shard)
            with suppress(StoreTrouble, LogAltered, Damaged):
                ShardLog(store, info, stream, shard, warn=warn).mend_end()


def _warn(log_event: EmitEvent, shard_id: str, message: str) -> None:
    log_event("warning", "landing_manifest_damaged", shard_id=shard_id, error=message)


def _open(
    store: LogStore, options: LanderOptions, watch: StoreWatch, stop: threading.Event
) -> LogInfo | None:
    """None after a stop."""
    failures = 0
    while not stop.is_set():
        try:
            if options.descriptor is not None:
                return known_log(store)
            probe(store)
            wanted = LogInfo(options.application, options.layout, options.format, secrets.token_hex(8))
            info = open_log(store, wanted)
        except StoreTrouble as trouble:
            failures += 1
            watch.failed(watch, trouble)
            stop.wait(retry_pause_s(failures))
        else:
            watch.worked(watch)
            return info
    return None


def _report(
    listener: RelayListener[ShardState],
    watch: StoreWatch,
    others: _Others | None,
    log_event: EmitEvent,
    stop: threading.Event,
) -> None:
    next_s = next_marks_s = monotonic_s()
    while not stop.wait(_TICK_S):
        if others is None and monotonic_s() >= next_marks_s:
            next_marks_s += MARKS_S
            log_event("debug", _MARKS, shards=msgspec.to_builtins(stated(listener.states())))
        if monotonic_s() < next_s:
            continue
        next_s += FIGURES_S
        now_ms = epoch_ms()
        shards = {each.shard_id: figures(each, now_ms) for each in listener.states() if not each.ended}
        trouble = watch.figures()
        for reported in others.reports() if others is not None else ():
            shards.update(reported["shards"])
            trouble = trouble or reported["trouble"]
        log_event("debug", _FIGURES, shards=shards, trouble=trouble)


class _Others:
    """They end with their stdin, so also when this process is killed."""

    def __init__(
        self, options: LanderOptions, descriptor: int, log_event: EmitEvent, stop: threading.Event
    ) -> None:
        self._line = msgspec.json.encode(msgspec.structs.replace(options, descriptor=descriptor)) + b"\n"
        self._descriptor = descriptor
        self._log_event = log_event
        self._stop = stop
        self._reports: dict[int, dict[str, Any]] = {}
        self._marks: dict[int, dict[str, Mark]] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._threads = [
            threading.Thread(target=self._keep, args=(number,), daemon=True)
            for number in range(1, options.processes)
        ]
        for each in self._threads:
            each.start()

    def reports(self) -> list[dict[str, Any]]:
        return list(self._reports.values())

    def marks(self) -> list[dict[str, Mark]]:
        return list(self._marks.values())

    def end(self) -> None:
        for each in list(self._running.values()):
            assert each.stdin is not None
            each.stdin.close()
        for thread in self._threads:
            thread.join(_END_S)

    def _keep(self, number: int) -> None:
        while not self._stop.is_set():
            with subprocess.Popen(
                [sys.executable, "-m", "kcl_landing.lander"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._descriptor],
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(self._line)
                process.stdin.flush()
                self._running[number] = process
                self._pass_on(number, process.stdout)
                code = process.wait()
            self._running.pop(number, None)
            self._reports.pop(number, None)
            self._marks.pop(number, None)
            if not self._stop.is_set():
                self._log_event("warning", "lander_process_ended", code=code)
                self._stop.wait(_RESTART_S)

    def _pass_on(self, number: int, events: IO[bytes]) -> None:
        for line in events:
            event = msgspec.json.decode(line, type=dict[str, Any])
            level, name = event.pop("level"), event.pop("event")
            if name == _FIGURES:
                self._reports[number] = event
            elif name == _MARKS:
                self._marks[number] = msgspec.convert(event["shards"], dict[str, Mark])
            elif name != "lander_stopped":
                self._log_event(level, name, **event)


def _keep_freed_memory() -> None:
    """To get it anew for each segment costs a sixth of the CPU."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and os.environ.get("KCL_POSIX_ONLY") != "1":
        for parameter, size_bytes in _MALLOC:
            mallopt(parameter, size_bytes)
        pa.set_memory_pool(pa.system_memory_pool())


def main() -> int:
    log_event = take_over_stdout()
    _keep_freed_memory()
    rosters = Rosters(log_event)
    line, stop = begin(rosters.hear)
    options = msgspec.json.decode(line, type=LanderOptions)
    try:
        run(options, log_event, stop, rosters)
    except Refused as error:
        log_event("error", "landing_refused", error=str(error))
        return EXIT_REFUSED
    log_event("info", "lander_stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
