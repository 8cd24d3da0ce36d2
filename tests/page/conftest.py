"""Fixtures of the page tier: a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """Chromium as the system has it, without a window; downloads nothing.

    For one module at a time: while it is there, an event loop runs in this thread, and tests of other modules start theirs.
    """
    with sync_playwright() as playwright:
        found = launched(playwright)
        if found is None:
            pytest.skip("chromium is not installed: the status page WAS NOT RUN in a browser")
        yield found
        found.close()


def launched(playwright: Playwright) -> Browser | None:
    """None: it is not installed."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        return None
    # Root may not use the sandbox; /dev/shm is small in containers.
    words = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    return playwright.chromium.launch(executable_path=program, args=words)
