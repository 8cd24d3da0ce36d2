"""As whom children are started: under no number that the kernel would take for "no change"."""

from __future__ import annotations

import os

import pytest

from kcl_daemon.children.start import ChildAccount, account_of, options_of
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.errors import ChildStartFailed

ROOT = 0


@pytest.mark.parametrize(
    ("user", "number"),
    [
        ("4294967295:1", "4294967295"),
        ("1:4294967295", "4294967295"),
        ("root:4294967295", "4294967295"),
        ("4294967296:1", "4294967296"),
        ("99999999999:1", "99999999999"),
        ("root:99999999999", "99999999999"),
    ],
)
def test_nobody_is_started_under_a_number_that_means_no_change(
    monkeypatch: pytest.MonkeyPatch, user: str, number: str
) -> None:
    for euid in (ROOT, 12_345):
        monkeypatch.setattr(os, "geteuid", lambda euid=euid: euid)
        with pytest.raises(
            ChildStartFailed, match=f"childUser = {user}: .* the number {number}; the largest is"
        ):
            options_of(ChildSettings(("x",), user=user))


def test_the_largest_number_is_somebodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)
    assert account_of("4294967294:4294967294") == ChildAccount(2**32 - 2, 2**32 - 2, (2**32 - 2,))
