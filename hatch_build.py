"""What the build adds: the long description with links that work on an index page, and packaging/ and docs/ in the wheel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SHIPPED: Final = {
    "packaging": "kcl_daemon/shipped/packaging",
    "docs": "kcl_daemon/shipped/docs",
    "clients/samples": "kcl_daemon/shipped/samples",
}
"""Folders of a checkout, and where the wheel has them; `kcl-daemon packaging` and `init` find them in both."""

_LEFT_OUT: Final = {".pyc", ".pyo"}
_NOT_A_DOCUMENT: Final = "site_hooks.py"
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# A link to a file of the checkout, or to a heading of this page.
_RELATIVE: Final = re.compile(r"!?\[(?P<text>[^\]]*)\]\((?!https?:|mailto:)(?P<target>[^)\s]*)\)")
_WHERE: Final = (
    "\n\nThe documents and the packaging folder that this page names are in the package: `kcl-daemon packaging` lists them, "
    "`kcl-daemon packaging docs --write .` writes the documents out.\n"
)


def long_description(readme: str) -> str:
    """The README as it can be read elsewhere: links that would lead nowhere are text, and where the documents are is said."""
    heading, newline, rest = readme.partition("\n")
    parts = _FENCE.split(rest)
    plain = (part if number % 2 else _RELATIVE.sub(_as_text, part) for number, part in enumerate(parts))
    return heading + _WHERE + newline + "".join(plain)


def _as_text(link: re.Match[str]) -> str:
    text, path = link["text"], link["target"].partition("#")[0]
    return text if not path or path in text else f"{text} (`{path}`)"


def shipped_files(root: Path) -> dict[str, str]:
    """What goes into the wheel beside the packages: by path, where; folders that are not there are left out."""
    return {
        str(path): f"{target}/{path.relative_to(root / folder).as_posix()}"
        for folder, target in SHIPPED.items()
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and path.suffix not in _LEFT_OUT and path.name != _NOT_A_DOCUMENT
    }


class LongDescription(MetadataHookInterface):
    """Gives the project its `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """As hatchling says."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}


class Shipped(BuildHookInterface[Any]):
    """Puts the folders into the wheel; an editable install finds them where they are."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """As hatchling says."""
        if self.target_name == "wheel" and version != "editable":
            build_data["force_include"].update(shipped_files(Path(self.root)))
