"""What the package promises to others."""

from __future__ import annotations

import kcl_protocol

# Few children take frames, so they are loaded when they are asked for.
LATE = {"Columns", "Frame", "decode_frame", "encode_frame"}


def test_everything_promised_is_there() -> None:
    assert all(hasattr(kcl_protocol, name) for name in kcl_protocol.__all__)


def test_everything_public_is_promised() -> None:
    modules = {
        "arrow",
        "codec",
        "conversation",
        "errors",
        "frames",
        "messages",
        "sequence",
        "sides",
        "annotations",
        "TYPE_CHECKING",
    }
    public = {name for name in vars(kcl_protocol) if not name.startswith("_")} - modules
    assert public | LATE == set(kcl_protocol.__all__)
