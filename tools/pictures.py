"""Draws docs/img/run.svg and top.svg from real runs: `make pictures`.

Commands are typed into bash on a pseudo terminal, beside local endpoints; what the terminal showed is drawn, by CSS alone
where it moves. Times and ids are others each time, so no test compares the pictures.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

import pyte
from pyte.screens import Char

from kcl_daemon.system import SystemClock

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "img"
CLOCK: Final = SystemClock()
END_S: Final = 60.0
SETSID: Final = "/usr/bin/setsid"
BASH: Final = "/bin/bash"

COLUMNS: Final = 104

CONSUMER: Final = """\
def handle(record):
    print("got", record.text())
"""
# One key of many is bad, so one shard of all stands still.
FAILING: Final = """\
import time


def handle(record):
    time.sleep(0.004)
    if record.partition_key == "k7":
        raise ValueError("an order without a customer")
"""
TOP: Final = """\
executableName = python3 -m kcl_client.run consumer:handle
applicationName = orders-consumer
streamName = orders
initialPositionInStream = TRIM_HORIZON
retrievalMode = POLLING
metricsLevel = NONE
disableWorkerMetrics = true
adminPort = {port}
"""

_TOP_COMMAND: Final = "kcl-daemon top app.properties"
_TYPING_S: Final = 0.035
_STEP_S: Final = 0.15  # what is shown in a shorter time is one frame
_IDLE_S: Final = 1.3  # a longer pause is cut to this
_HOLD_S: Final = 5.0

_WIDTH: Final = 8.0
_HEIGHT: Final = 18
_MARGIN: Final = 16
_BAR: Final = 30
_INK: Final = "#d7e0dd"
_COLOURS: Final = {
    "black": "#5d6b67",
    "red": "#ff8076",
    "green": "#7fd88f",
    "brown": "#e5c07b",
    "blue": "#79b8ff",
    "magenta": "#d7a6ff",
    "cyan": "#6fd3c7",
    "white": "#ffffff",
}


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class Said:
    """What a terminal got, and when."""

    at_s: float
    terminal: int
    data: bytes


class Terminal:
    """Bash on a pseudo terminal; what it shows is added to `said`."""

    def __init__(
        self,
        number: int,
        size: tuple[int, int],
        folder: Path,
        environment: Mapping[str, str],
        said: list[Said],
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self._process = subprocess.Popen(  # noqa: S603 - the shell that is drawn
            [SETSID, "--ctty", "--wait", BASH, "--norc", "--noprofile", "-i"],
            cwd=folder,
            env={
                **environment,
                "PS1": "$ ",
                "TERM": "xterm-256color",
                "BASH_SILENCE_DEPRECATION_WARNING": "1",
            },
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._number, self._said = number, said
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait_for("$ ")

    def _read(self) -> None:
        with suppress(OSError):
            while data := os.read(self._ours, 65536):
                self._said.append(Said(CLOCK.monotonic(), self._number, data))

    def wait_for(self, text: str, times: int = 1) -> None:
        end = CLOCK.monotonic() + END_S
        while self.text().count(text) < times:
            if CLOCK.monotonic() > end:
                sys.exit(f"{text!r} was not shown:\n{self.text()}")
            pause(0.02)

    def text(self) -> str:
        return b"".join(each.data for each in self._said if each.terminal == self._number).decode(
            "utf-8", "replace"
        )

    def type(self, line: str) -> None:
        """As a person does, and Enter."""
        for letter in line:
            os.write(self._ours, letter.encode())
            pause(_TYPING_S)
        pause(0.3)
        os.write(self._ours, b"\n")

    def close(self) -> None:
        os.write(self._ours, b"\x03")
        pause(1)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGHUP)
        self._process.wait(END_S)
        self._reader.join(END_S)
        os.close(self._ours)


Row = tuple[tuple[int, str, str, bool], ...]
"""Pieces: column, text, colour, bold."""


def colour_of(name: str) -> str:
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return _COLOURS.get(name.removeprefix("bright"), _INK)


def row_of(line: Mapping[int, Char], columns: int) -> Row:
    cells = [(column, line[column]) for column in range(columns)]
    pieces: list[tuple[int, str, str, bool]] = []
    for style, group in groupby(cells, key=lambda cell: (cell[1].fg, cell[1].bold)):
        listed = list(group)
        text = "".join(cell.data for _, cell in listed)
        if text.strip():
            start = listed[0][0] + len(text) - len(text.lstrip())
            pieces.append((start, text.strip(), colour_of(style[0]), style[1]))
    return tuple(pieces)


def frames_of(
    said: Sequence[Said], sizes: Sequence[tuple[int, int]], columns: int
) -> list[tuple[float, list[Row]]]:
    """When which rows were there: of all terminals, one below the other."""
    screens = [pyte.Screen(wide, high) for high, wide in sizes]
    streams = [pyte.ByteStream(screen) for screen in screens]
    frames: list[tuple[float, list[Row]]] = []
    now_s = 0.0
    last_s = said[0].at_s
    for each in said:
        now_s += min(each.at_s - last_s, _IDLE_S)
        last_s = each.at_s
        streams[each.terminal].feed(each.data)
        rows = [row_of(screen.buffer[line], columns) for screen in screens for line in range(screen.lines)]
        if frames and now_s - frames[-1][0] < _STEP_S:
            frames[-1] = (frames[-1][0], rows)
        elif not frames or rows != frames[-1][1]:
            frames.append((now_s, rows))
    return frames


def spans_of(frames: Sequence[tuple[float, list[Row]]]) -> dict[tuple[int, int], list[tuple[int, Row]]]:
    """Rows by the first frame with them and the first without them; that is the number of frames for those that stay."""
    found: dict[tuple[int, int], list[tuple[int, Row]]] = {}
    for line in range(len(frames[0][1])):
        changes = [
            0,
            *(at for at in range(1, len(frames)) if frames[at][1][line] != frames[at - 1][1][line]),
            len(frames),
        ]
        for first, end in pairwise(changes):
            row = frames[first][1][line]
            if row:
                found.setdefault((first, end), []).append((line, row))
    return found


def drawing(
    title: str,
    description: str,
    frames: Sequence[tuple[float, list[Row]]],
    sizes: Sequence[tuple[int, int]],
    *,
    command: str = "",
) -> str:
    """The picture. With one frame it does not move; it does not either for those who do not want that."""
    tops = list(_tops(sizes))
    high = tops[-1] + sizes[-1][0] * _HEIGHT + _MARGIN
    columns = sizes[-1][1]
    wide = round(columns * _WIDTH) + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" aria-labelledby="t d" xml:space="preserve">',
        f'<title id="t">{html.escape(title)}</title>',
        f'<desc id="d">{html.escape(description)}</desc>',
        f"<style>{''.join(_styles(frames))}</style>",
        f'<rect width="{wide}" height="{high}" rx="10" fill="#12201d" stroke="#3d4f4a"/>',
        *_bars(tops, wide),
    ]
    if command:
        lines.append(f'<text x="90" y="20">$ {html.escape(command)}</text>')
    place = [top + line * _HEIGHT for top, (rows, _) in zip(tops, sizes, strict=True) for line in range(rows)]
    for (first, end), rows in spans_of(frames).items():
        moves = "" if (first, end) == (0, len(frames)) else f' class="f{first}-{end}"'
        lines += [f"<g{moves}>", *(_text(row, place[line]) for line, row in rows), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _tops(sizes: Sequence[tuple[int, int]]) -> Iterator[int]:
    top = _BAR
    for rows, _ in sizes:
        yield top
        top += rows * _HEIGHT + _BAR


def _bars(tops: Sequence[int], wide: int) -> Iterator[str]:
    for number, top in enumerate(tops):
        if number:
            yield f'<path d="M0 {top - _BAR + 10}H{wide}" stroke="#3d4f4a"/>'
        else:
            for place, colour in enumerate(("#ff8076", "#e5c07b", "#7fd88f")):
                yield f'<circle cx="{_MARGIN + 5 + 18 * place}" cy="15" r="5" fill="{colour}"/>'


def _styles(frames: Sequence[tuple[float, list[Row]]]) -> Iterator[str]:
    yield f"text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{_INK};white-space:pre}}.b{{font-weight:700}}"
    last = len(frames)
    length_s = frames[-1][0] + _HOLD_S
    spans = [span for span in spans_of(frames) if span != (0, last)]
    for first, end in spans:
        if end != last:
            yield f".f{first}-{end}{{visibility:hidden}}"
    if not spans:
        return
    yield "@media(prefers-reduced-motion:no-preference){"
    for first, end in spans:
        on = 100 * frames[first][0] / length_s
        off = 100 * frames[end][0] / length_s if end != last else 100
        name = f"f{first}-{end}"
        yield f".{name}{{animation:{name} {length_s:.1f}s step-end infinite}}"
        begin = "" if first == 0 else "0%{visibility:hidden}"
        stop = "" if end == last else f"{off:.2f}%{{visibility:hidden}}"
        yield f"@keyframes {name}{{{begin}{on:.2f}%{{visibility:visible}}{stop}}}"
    yield "}"


def _text(row: Row, top: int) -> str:
    pieces: list[str] = []
    for column, text, colour, bold in row:
        style = f' fill="{colour}"' if colour != _INK else ""
        weight = ' class="b"' if bold else ""
        # So wide in any font: columns stay columns.
        length = f' textLength="{len(text) * _WIDTH:g}"' if len(text) > 1 else ""
        pieces.append(
            f'<tspan x="{_MARGIN + column * _WIDTH:g}"{style}{weight}{length}>{html.escape(text)}</tspan>'
        )
    return f'<text y="{top + 13}">{"".join(pieces)}</text>'


def run_picture(folder: Path, environment: Mapping[str, str]) -> str:
    """From the first command to the first record."""
    (folder / "consumer.py").write_text(CONSUMER)
    sizes = [(23, 260), (4, COLUMNS)]
    said: list[Said] = []
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(Terminal(number, size, folder, environment, said)))
            for number, size in enumerate(sizes)
        )
        first.type("cat consumer.py")
        first.wait_for("$ ", 2)
        first.type("kcl-daemon run orders consumer:handle --local")
        first.wait_for("child_started")
        pause(1)
        second.type("printf '%s\\n' 'two apples' 'a pear' | kcl-daemon put orders --local")
        second.wait_for("$ ", 2)
        first.wait_for("got a pear")
        pause(1)
        recorded = list(said)
    return drawing(
        "kcl-daemon run, from the first command to the first records",
        "Two terminals. In the first one, kcl-daemon run orders consumer:handle --local starts a local Kinesis, a daemon and a child "
        "for the one shard. In the second one, kcl-daemon put writes two lines into the stream. The first one shows them, as the "
        "function prints them.",
        frames_of(recorded, sizes, COLUMNS),
        sizes,
    )


def top_picture(folder: Path, environment: Mapping[str, str], port: int) -> str:
    """Eight shards at work; the child of one fails."""
    (folder / "consumer.py").write_text(FAILING)
    (folder / "app.properties").write_text(TOP.format(port=port))
    size = (20, COLUMNS + 16)
    with ExitStack() as stack:
        local = ["kcl-daemon", "local", "--stream", "orders:8", "--format", "json"]
        endpoints = background(local, folder, environment, stack)
        assert endpoints.stdout is not None
        env = {**environment, **json.loads(endpoints.stdout.readline())["environment"]}
        background(["kcl-daemon", "app.properties"], folder, env, stack)
        feed = 'while true; do for i in $(seq $((RANDOM % 500))); do echo {\\"customer\\": \\"k$((i % 40))\\"}; done; sleep 1; done'
        background([BASH, "-c", f"{feed} | kcl-daemon put orders --local --key customer"], folder, env, stack)
        pause(75)
        said: list[Said] = []
        terminal = stack.enter_context(closing(Terminal(0, size, folder, env, said)))
        terminal.type(_TOP_COMMAND)
        pause(8)
        recorded = list(said)
    frames = frames_of(recorded, [size], size[1])
    return drawing(
        "kcl-daemon top, with a shard whose child fails",
        "kcl-daemon top app.properties shows a worker with eight shards: what each does, how far it is behind, its records and its child. "
        "One of them makes no progress, because its child fails again and again.",
        frames[-1:],
        [size],
        command=_TOP_COMMAND,
    )


def background(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], stack: ExitStack
) -> subprocess.Popen[bytes]:
    """Runs until the stack is closed."""
    process = subprocess.Popen(  # noqa: S603 - our own programs
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=END_S)

    stack.callback(end)
    return process


def main() -> None:
    with tempfile.TemporaryDirectory() as made, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        folder = Path(made)
        (folder / "work").mkdir()
        programs = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
        environment = {
            "PATH": programs,
            "HOME": made,
            "XDG_RUNTIME_DIR": made,
            "XDG_STATE_HOME": made,
            "LANG": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name == "PYTHONPATH"},
        }
        (IMAGES / "run.svg").write_text(run_picture(folder / "work", environment), "utf-8")
        (IMAGES / "top.svg").write_text(top_picture(folder / "work", environment, port), "utf-8")


if __name__ == "__main__":
    main()
