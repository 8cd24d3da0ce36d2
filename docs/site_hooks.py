"""What mkdocs needs to be told to make a site of these documents (see mkdocs.yml).

Adds the documents of the top folder as pages, leaves out of the navigation what does not exist yet, turns links that
leave the documents into text, and draws state diagrams as tables: the usual way would load a program from the network.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
TOP_PAGES: Final = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages of the site that are files of the top folder."""

_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
_STATES: Final = re.compile(r"^```mermaid\nstateDiagram-v2\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_TRANSITION: Final = re.compile(r"^\s*(\S+) --> (\S+)(?: : (.*))?$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave pages that do not exist out of the navigation."""
    config.nav = existing(config.nav or [])
    return config


def existing(nav: list[object]) -> list[object]:
    """The navigation without pages that there are none of, and without sections that are empty then."""
    kept: list[object] = []
    for entry in nav:
        assert isinstance(entry, dict), "every entry of the navigation has a title"
        ((title, target),) = entry.items()
        if isinstance(target, list):
            inner = existing(target)
            kept += [{title: inner}] if inner else []
        elif target in TOP_PAGES or (ROOT / "docs" / str(target)).is_file():
            kept.append(entry)
    return kept


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents of the top folder."""
    from mkdocs.structure.files import File  # tests use this module without mkdocs

    for name, source in TOP_PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs' names
    """Links and diagrams as the site can show them."""
    return with_links_inside(with_tables_of_states(markdown), TOP_PAGES.get(page.file.src_uri))


def with_links_inside(markdown: str, source: str | None) -> str:
    """Links between documents lead to their pages; what leads elsewhere in the repository becomes text.

    Args:
        markdown: of a page.
        source: the file of the top folder that it is; None: it is one of the documents.
    """
    pages = {f"../{file}" if source is None else file: name for name, file in TOP_PAGES.items()}

    def replace(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or re.match(r"\w+:", target):
            return match[0]
        if target in pages:
            return f"[{match['text']}]({pages[target]}{anchor})"
        path = PurePosixPath(target)
        if source is not None and path.parts[0] == "docs":
            return f"[{match['text']}]({path.relative_to('docs')}{anchor})"
        if source is None and path.parts[0] != "..":
            return match[0]
        return match["text"]

    return _outside_of_code(markdown, lambda text: _LINK.sub(replace, text))


def with_tables_of_states(markdown: str) -> str:
    """State diagrams as tables: from, to, when."""

    def table(match: re.Match[str]) -> str:
        rows = ["| from | to | when |", "|---|---|---|"]
        for one, other, when in _TRANSITION.findall(match["body"]):
            states = (
                ("*begin*" if one == "[*]" else f"`{one}`"),
                ("*end*" if other == "[*]" else f"`{other}`"),
            )
            rows.append(f"| {states[0]} | {states[1]} | {html.escape(when)} |")
        return "\n".join(rows)

    return _STATES.sub(table, markdown)


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    pieces: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        pieces += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, change(markdown[end:])])
