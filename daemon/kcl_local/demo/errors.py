"""What can stop the demo before it has a verdict."""

from __future__ import annotations


class DemoError(Exception):
    """Raised when the demo cannot go on; the message says what failed and where to look."""
