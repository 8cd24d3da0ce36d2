"""The documents as a site: every page has its place, it builds without a warning, and it needs no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from docs import site_hooks
from tests.documents.blocks import ROOT

DOCS = ROOT / "docs"


def test_every_page_has_a_place_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    places = re.findall(r": ([\w-]+\.md)\b", nav)
    assert len(places) == len(set(places))
    pages = {path.name for path in DOCS.glob("*.md")} | set(site_hooks.TOP_PAGES)
    missing = sorted(pages - set(places))
    assert not missing, "\n".join(
        ["", "put into nav in mkdocs.yml:", *(f"      - What it is about: {name}" for name in missing)]
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """What a browser fetches by itself for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = {"script": "src", "img": "src", "link": "href", "iframe": "src"}.get(tag)
        self.addresses += [value for key, value in attrs if key == name and value]


def pages_of(site: Path) -> list[Path]:
    """Its pages, of which there are some."""
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 10
    return pages


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in pages_of(site):
        loaded = Loaded()
        loaded.feed(page.read_text("utf-8"))
        assert loaded.addresses
        assert [address for address in loaded.addresses if re.match(r"(\w+:)?//", address)] == [], page.name
        assert 'class="mermaid"' not in page.read_text("utf-8")


def test_lists_and_tables_are_lists_and_tables(site: Path) -> None:
    for page in pages_of(site):
        article = re.search(r"<article.*?</article>", page.read_text("utf-8"), re.DOTALL)
        assert article is not None, page.name
        flat = re.findall(r"<p>(?:(?!</p>).)*\n(?:- |\d+\. |\| )(?:(?!</p>).)*</p>", article[0], re.DOTALL)
        assert flat == [], f"{page.name}: put an empty line before the list or table"


def test_links_to_documents_of_the_top_folder_lead_to_their_pages() -> None:
    text = "[a](../README.md#try-it) [b](properties.md#x) [c](../pyproject.toml) [d](https://x.y/z) `[e](../README.md)`"
    expected = "[a](index.md#try-it) [b](properties.md#x) c [d](https://x.y/z) `[e](index.md)`"
    assert site_hooks.with_links_inside(text, None) == expected
    top = "[a](docs/spark.md) [b](CHANGELOG.md) [c](packaging/systemd/x.service) [d](#try-it)"
    assert site_hooks.with_links_inside(top, "README.md") == "[a](spark.md) [b](changelog.md) c [d](#try-it)"


def test_links_in_code_stay_as_they_are() -> None:
    text = "```text\n[a](../README.md)\n```\n[a](../README.md)"
    assert site_hooks.with_links_inside(text, None) == "```text\n[a](../README.md)\n```\n[a](index.md)"


def test_a_state_diagram_becomes_a_table() -> None:
    text = "```mermaid\nstateDiagram-v2\n    [*] --> held : claimed\n    held --> [*]\n```\n"
    assert site_hooks.with_tables_of_states(text) == (
        "| from | to | when |\n|---|---|---|\n| *begin* | `held` | claimed |\n| `held` | *end* |  |\n"
    )


def test_sections_without_pages_are_left_out_of_the_navigation() -> None:
    nav: list[object] = [{"A": "design.md"}, {"B": [{"C": "no-such-page.md"}]}, {"D": "index.md"}]
    assert site_hooks.existing(nav) == [{"A": "design.md"}, {"D": "index.md"}]


@pytest.mark.parametrize("path", sorted(DOCS.glob("img/*.svg")), ids=lambda path: path.name)
def test_a_diagram_says_what_it_shows_and_fetches_nothing(path: Path) -> None:
    text = path.read_text("utf-8")
    svg = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert svg.get("role") == "img"
    assert svg.findtext(f"{space}title")
    assert svg.findtext(f"{space}desc")
    assert re.findall(r"(?:href|src)=|url\((?!#)|<script|@import", text) == []


def test_the_search_finds_a_page_from_the_disk(site: Path) -> None:
    """Over `file://`, where browsers start no worker and fetch no JSON."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("chromium is not installed: the search of the site WAS NOT TRIED")
    words = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=words)
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "tutorial.html").as_uri())
        box = page.locator("input.md-search__input")
        box.click()
        box.press_sequentially("maxRecordAgeMillis", delay=20)
        found = page.locator(".md-search-result__link")
        found.first.wait_for(timeout=60_000)
        targets = [str(each.get_attribute("href")) for each in found.all()]
        browser.close()
    assert any("properties.html" in each for each in targets)
    assert [each for each in asked if not each.startswith(("file:", "data:", "blob:", "about:"))] == []
