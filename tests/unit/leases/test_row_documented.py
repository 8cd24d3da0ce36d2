"""Whoever queries the lease table finds what its attributes are."""

from __future__ import annotations

import re
from pathlib import Path

from kcl_daemon.leases import row

PAGE = Path(__file__).parents[3] / "docs" / "operations-leases.md"


def test_every_attribute_of_a_lease_row_is_in_the_table_of_the_documents() -> None:
    attributes = {
        value
        for name, value in vars(row).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch("[a-z][A-Za-z]+", value)
    }
    assert {"leaseKey", "childShardIds", "throughputKBps"} < attributes
    section = PAGE.read_text("utf-8").partition("## The attributes of a row")[2].partition("\n## ")[0]
    named = re.findall("`([A-Za-z]+)`", "\n".join(re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE)))
    assert attributes == set(named)
