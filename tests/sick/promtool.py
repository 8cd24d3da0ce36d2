"""Prometheus' own tool over the same samples: `promtool test rules`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.sick.promql import NAME, Labels, Store
from tests.sick.rules import ALERTS, EVERY_S, Firing
from tests.sick.stage import SCRAPED_EVERY_S

PROMTOOL: Final = shutil.which("promtool")


def complaints(store: Store, firings: Sequence[Firing], until_s: float, folder: Path) -> str:
    """What the tool says where at some evaluation other alerts fire than these; empty: they are the same."""
    assert PROMTOOL is not None
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": f"{EVERY_S:g}s",
        "tests": [
            {
                "interval": f"{SCRAPED_EVERY_S:g}s",
                "input_series": list(_inputs(store, until_s)),
                "promql_expr_test": [
                    _at(firings, step * EVERY_S) for step in range(int(until_s / EVERY_S) + 1)
                ],
            }
        ],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(test))  # which is YAML, too
    ran = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def _inputs(store: Store, until_s: float) -> Sequence[dict[str, str]]:
    steps = [step * SCRAPED_EVERY_S for step in range(int(until_s / SCRAPED_EVERY_S) + 1)]
    found: list[dict[str, str]] = []
    for named in (series for name, series in store.by_name.items() if ":" not in name):
        for labels, series in named.items():
            samples = dict(zip(series.times, series.values, strict=True))
            words = [_word(samples, at) for at in steps]
            found.append({"series": _series(labels), "values": " ".join(words)})
    return found


def _word(samples: dict[float, float | None], at_s: float) -> str:
    if at_s not in samples:
        return "_"
    value = samples[at_s]
    return "stale" if value is None else repr(value)


def _series(labels: Labels) -> str:
    given = dict(labels)
    name = given.pop(NAME)
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in sorted(given.items()))}}}"


def _at(firings: Sequence[Firing], at_s: float) -> dict[str, object]:
    return {
        "expr": 'count by (alertname, job, instance, shard_id, stream, operation, query) (ALERTS{alertstate="firing"})',
        "eval_time": f"{at_s:g}s",
        "exp_samples": [
            {
                "labels": _series(each.labels | {(NAME, ""), ("alertname", each.alert)}),
                "value": 1,
            }
            for each in firings
            if each.from_s <= at_s <= each.to_s
        ],
    }
