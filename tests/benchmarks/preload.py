"""`python -m tests.benchmarks.preload`: memory and start of children, one by one and forked from a template.

The program imports pandas, or, where it is missing, modules and objects that need as much.
"""

from __future__ import annotations

import argparse
import sys
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from kcl_daemon.children.process import ProcessChild, ProcessChildren
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.ports import Child
from kcl_daemon.system import SystemClock
from kcl_local.demo.check import monotonic_s
from kcl_protocol.codec import encode
from kcl_protocol.messages import Initialize, ProcessRecords, Record
from tests.process.children.support import SHARD, RecordingLog, receive_line

# Each child collects once, as one that runs for long does, and so writes to whatever is not frozen.
PROGRAM: Final = """
import gc, sys
{heavy}
if "thaw" in sys.argv:
    gc.freeze = lambda: None
from kcl_client import *
class Program(RecordProcessor):
    def process_records(self, batch, checkpointer):
        {work}
        gc.collect()
run(Program())
"""
PANDAS: Final = ("import pandas", "pandas.DataFrame({'data': [r.data for r in batch.records]}).describe()")
STAND_IN: Final = (
    "import asyncio, sqlite3, unittest.mock, xml.dom.minidom; table = {n: str(n) for n in range(600_000)}",
    "[table.get(len(r.data)) for r in batch.records]",
)
BATCH: Final = encode(
    ProcessRecords([Record(b64encode(bytes(1024)).decode(), "key", str(n)) for n in range(100)], 0)
)
MODES: Final = ("ordinary", "childPreload", "childPreload without gc.freeze()")


@dataclass(frozen=True)
class Figures:
    first_s: float
    each_s: float
    rss_mb: float
    pss_mb: float
    uss_mb: float
    together_mb: float


def heavy() -> tuple[str, str, str]:
    """The name of the import, its line, and the work on a batch."""
    if find_spec("pandas") is None:
        return ("a stand-in for pandas", *STAND_IN)
    return ("pandas", *PANDAS)


def memory(pid: int) -> dict[str, float]:
    """What the kernel says of one process, in MB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    found = {name.rstrip(":"): int(kb) / 1000 * 1.024 for name, kb, _ in lines}
    return {**found, "Uss": found["Private_Clean"] + found["Private_Dirty"]}


async def answered(child: Child, message: bytes) -> None:
    await child.send(message)
    assert b'"status"' in await receive_line(child), child.stderr_tail


async def measured(command: tuple[str, ...], count: int, options: ChildOptions) -> Figures:
    log, started, took_s = RecordingLog(), list[ProcessChild](), list[float]()
    async with ProcessChildren(command, log, SystemClock(), options) as children:
        for _ in range(count):
            began_s = monotonic_s()
            child = await children.start(SHARD)
            await answered(child, encode(Initialize("shardId-0", "TRIM_HORIZON", 0)))
            took_s.append(monotonic_s() - began_s)
            started.append(child)
        for child in started:
            await answered(child, BATCH)
        templates = [
            int(str(fields["pid"])) for _, event, fields in log.recorded.last if event.startswith("child_t")
        ]
        assert len(templates) == (1 if options.preload else 0), log.recorded.last
        each = [memory(child.pid) for child in started]
        together_mb = sum(found["Pss"] for found in (*each, *map(memory, templates)))
        rss_mb, pss_mb, uss_mb = (median(found[name] for found in each[1:]) for name in ("Rss", "Pss", "Uss"))
    return Figures(took_s[0], median(took_s[1:]), rss_mb, pss_mb, uss_mb, together_mb)


def rows(program: Path, counts: Iterable[int]) -> Iterable[str]:
    for count in counts:
        for mode in MODES:
            command = (sys.executable, str(program), "thaw" if "without" in mode else "")
            found = anyio.run(measured, command, count, ChildOptions(preload=mode != MODES[0]))
            yield (
                f"| {count} | {mode} | {found.first_s:.2f} s | {found.each_s * 1000:.0f} ms | {found.rss_mb:.1f} "
                f"| {found.pss_mb:.1f} | {found.uss_mb:.1f} | {found.together_mb:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure children with and without childPreload.")
    parser.add_argument("--children", type=int, nargs="+", default=[16, 64], help="how many at once (16 64)")
    counts: list[int] = parser.parse_args().children
    name, line, work = heavy()
    sys.stdout.write(
        f"A program that imports {name}; median of the children after the first, in MB\n\n"
        "| children | | first answer | further ones | RSS | PSS | USS | PSS of all |\n|---|---|---|---|---|---|---|---|\n"
    )
    with TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM.format(heavy=line, work=work))
        for row in rows(program, counts):
            sys.stdout.write(row + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
