"""A page in a browser, and what went wrong in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, Request

SCREENSHOTS: Final = Path(__file__).parents[2] / "build" / "screenshots"
_TIMEOUT_MS: Final = 90_000


@dataclass
class Looked:
    """One tab.

    Attributes:
        page: the tab.
        troubles: what the browser complained about, such as the policy.
        elsewhere: requests that did not go to the daemon.
    """

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list[str])
    elsewhere: list[str] = field(default_factory=list[str])

    def assert_quiet(self) -> None:
        """The browser had nothing to complain about, and asked nobody else."""
        assert self.troubles == []
        assert self.elsewhere == []

    def heard(self, message: ConsoleMessage) -> None:
        """From the console."""
        self.troubles.append(f"{message.type}: {message.text}")

    def asked(self, request: Request) -> None:
        """A request."""
        if not request.url.startswith((self.url, "data:")):
            self.elsewhere.append(request.url)

    def rows(self, section: str) -> dict[str, list[str]]:
        """The text of the cells of each row of a section, by its key; asked for at once, as asking takes time."""
        rows = self.page.locator(f"#{section} tr[data-key]")
        reported: list[tuple[str, list[str]]] = rows.evaluate_all(
            "rows => rows.map(row => [row.dataset.key, [...row.cells].map(cell => cell.innerText.trim())])"
        )
        return dict(reported)

    def text(self, selector: str) -> str:
        """What stands there now, and nothing where it is not there."""
        return "\n".join(self.page.locator(selector).all_inner_texts())

    def screenshot(self, name: str) -> None:
        """Kept in both colour schemes."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)
            self.page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}.png", full_page=True)
        self.page.emulate_media(color_scheme="light")


@contextmanager
def looking(
    browser: Browser,
    url: str,
    *,
    scheme: Literal["light", "dark"] = "light",
    width: int = 1280,
    height: int = 900,
) -> Generator[Looked]:
    """A tab with a page in it, closed at the end of the block."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    checked = Looked(page, url)
    page.on("console", checked.heard)
    page.on("pageerror", lambda error: checked.troubles.append(str(error)))
    page.on("request", checked.asked)
    try:
        page.goto(url)
        yield checked
    finally:
        context.close()
