"""A lander that kills itself: `python -m tests.landing.doomed OPTIONS POINT NTH`, at the NTH time it comes to a point.

Points: before-create, after-create (a segment); before-manifest, after-manifest; before-page, after-page.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from kcl_landing import lander
from kcl_landing.folder_store import FolderStore
from kcl_landing.lander import LanderOptions
from kcl_landing.log import MANIFESTS
from kcl_landing.marks import Rosters
from tests.landing.landers import Events


class DoomedStore(FolderStore):
    def __init__(self, folder: str, point: str, nth: int) -> None:
        super().__init__(Path(folder))
        self._point = point
        self._left = nth

    def create(self, path: str, content: bytes | memoryview) -> bool:
        what = "page" if path.startswith(MANIFESTS) else "create" if path.endswith(".parquet") else "other"
        self._come_to(f"before-{what}")
        done = super().create(path, content)
        self._come_to(f"after-{what}")
        return done

    def replace(self, path: str, content: bytes) -> None:
        what = "manifest" if path.startswith(MANIFESTS) else "other"
        self._come_to(f"before-{what}")
        super().replace(path, content)
        self._come_to(f"after-{what}")

    def _come_to(self, point: str) -> None:
        self._left -= point == self._point
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(given: str, point: str, nth: str) -> None:
    options = msgspec.json.decode(given, type=LanderOptions)
    events = Events()
    store = DoomedStore(options.uri, point, int(nth))
    lander.run(options, events, threading.Event(), Rosters(events), store=store)


if __name__ == "__main__":
    main(*sys.argv[1:])
