"""JSON by orjson if it is installed, else by the standard library."""

from __future__ import annotations

try:
    from kcl_protocol._json_fast import dump_line, load
except ImportError:
    from kcl_protocol._json_plain import dump_line, load

__all__ = ["dump_line", "load"]
