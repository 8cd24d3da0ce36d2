"""The error for what a person must put right before anything can run."""

from __future__ import annotations


class Refused(Exception):
    """Raised when the engine must not start or go on; the message says what to do."""
