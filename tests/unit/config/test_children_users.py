"""The properties of children: as whom they may run."""

from __future__ import annotations

import pytest

from kcl_daemon.config.children import ChildProtocol
from tests.unit.config.helpers import read, refusals


@pytest.mark.parametrize("number", ["4294967295", "4294967296", "99999999999"])
@pytest.mark.parametrize("form", ["{}:1", "1:{}", "app:{}", "{}", "{0}:{0}"])
def test_a_number_that_nobody_can_have_is_refused_when_the_file_is_read(form: str, number: str) -> None:
    value = form.format(number)
    (line,) = refusals(f"childUser = {value}\n")
    assert line == (
        f"app.properties:4: childUser = {value}: no user or group has the number {number}; "
        "allowed: USER or USER:GROUP, names or numbers up to 4294967294"
    )


@pytest.mark.parametrize("value", ["4294967294:4294967294", "0:0", "app", "app:web", "app$", "99999999999a"])
def test_names_and_all_other_numbers_are_taken(value: str) -> None:
    assert read(f"childUser = {value}\n").settings.child.user == value


def test_a_protocol_that_is_gone_is_named_and_taken_as_the_current_one() -> None:
    loaded = read("childProtocol = kcl_1_0\n")
    assert loaded.settings.child.protocol is ChildProtocol.CURRENT
    (notice,) = loaded.warnings
    assert (notice.event, notice.key) == ("property_has_no_effect", "childProtocol")
