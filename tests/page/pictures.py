"""Pictures of every sick fleet: `python -m tests.page.pictures OUT`, one for each sickness and width, as the first screen shows it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.page.conftest import launched
from tests.page.looking import looking
from tests.page.sick import SICK
from tests.unit.admin.serving import serving
from tests.unit.admin.stage import Standing

SIZES: Final = {1280: 800, 390: 844}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = launched(playwright)
        if browser is None:
            sys.exit("chromium is not installed: apt-get install chromium")
        for name, sickness in SICK.items():
            with serving(Standing(sickness())) as made:
                for width, height in SIZES.items():
                    with looking(browser, made.url, width=width, height=height) as checked:
                        checked.page.wait_for_selector("#shards", state="visible")
                        checked.page.screenshot(path=folder / f"{name}-{width}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
