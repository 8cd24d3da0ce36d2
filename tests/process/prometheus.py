"""A real Prometheus with the shipped rules, for tests of what it makes of real workers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

PROGRAM: Final = shutil.which("prometheus")
RULES: Final = Path(__file__).parents[2] / "packaging" / "prometheus" / "alerts.yml"
_EVERY_S: Final = 15
_LISTENS: Final = re.compile(rb'msg="Listening on" address=(\S+)')
_TARGETS: Final = "targets.json"
_END_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one.

    Args:
        url: where it answers.
        folder: its own.
    """

    url: str
    folder: Path

    def scrape(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """From now on these, by job, and no others."""
        groups = [{"targets": list(each), "labels": {"job": job}} for job, each in addresses.items()]
        written = self.folder / f"{_TARGETS}.new"
        written.write_text(json.dumps(groups), "utf-8")
        written.rename(self.folder / _TARGETS)

    def answer(self, query: str) -> list[dict[str, Any]]:
        """The series that a query has now."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def firing(self, job: str, *, severity: str = ".+", within: str = "") -> set[str]:
        """Alerts of a job that fire now, or that have fired in this time (`10m`)."""
        selected = f'ALERTS{{alertstate="firing", job="{job}", severity=~"{severity}"}}'
        query = f"last_over_time({selected}[{within}])" if within else selected
        return {each["metric"]["alertname"] for each in self.answer(query)}


@contextmanager
def prometheus(folder: Path) -> Generator[Prometheus]:
    """One that scrapes and evaluates every 15 s, without any target; ended with the block."""
    if PROGRAM is None:
        pytest.skip("prometheus is not installed: the shipped rules WERE NOT RUN beside real workers")
    config = {
        "global": {"scrape_interval": f"{_EVERY_S}s", "evaluation_interval": f"{_EVERY_S}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "kcl-daemon",
                "file_sd_configs": [{"files": [_TARGETS], "refresh_interval": f"{_EVERY_S}s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), "utf-8")  # which is YAML, too
    (folder / _TARGETS).write_text("[]", "utf-8")
    words = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0")
    with subprocess.Popen([PROGRAM, *words], cwd=folder, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            address = _address(process.stderr)
            rest = Thread(target=process.stderr.read)  # so that it never waits for a reader
            rest.start()
            yield Prometheus(f"http://{address}", folder)
        finally:
            process.terminate()
            process.wait(_END_S)


def _address(stderr: IO[bytes]) -> str:
    said: list[bytes] = []
    for line in stderr:
        said.append(line)
        if found := _LISTENS.search(line):
            return found[1].decode()
    raise AssertionError(f"it did not start: {b''.join(said)!r}")
