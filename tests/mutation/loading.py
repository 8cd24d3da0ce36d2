"""Loads a module with a fault in it; the file stays as it is. To be put into `sys.meta_path` before the module is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class _FaultyLoader(SourceLoader):
    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        return self._text.encode()


class FaultyFinder(MetaPathFinder):
    """`text` is what `module` has instead of the content of its file at `path`."""

    def __init__(self, module: str, path: str, text: str) -> None:
        self._module, self._path, self._text = module, path, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        return spec_from_file_location(fullname, self._path, loader=_FaultyLoader(self._path, self._text))
