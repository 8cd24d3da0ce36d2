"""The properties of the status page: off unless a port is set, and open to others with a token only."""

from __future__ import annotations

import pytest

from kcl_daemon.config.load import effective
from kcl_daemon.config.metrics_and_page import AdminSettings, is_loopback
from tests.unit.config.helpers import read, refusals

TOKEN = "0123456789abcdef"


def test_nothing_is_served_unless_a_port_is_set() -> None:
    assert read().settings.admin == AdminSettings(port=None, address="127.0.0.1")


def test_each_property_fills_its_field() -> None:
    loaded = read(f"adminPort = 8080\nadminAddress = 0.0.0.0\nadminToken = {TOKEN}\n")
    assert loaded.settings.admin == AdminSettings(8080, "0.0.0.0", TOKEN)
    assert loaded.warnings == ()
    loaded = read("adminPort = 0\nadminTokenFile = /run/secrets/token\n")
    assert loaded.settings.admin == AdminSettings(0, token_file="/run/secrets/token")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.1.2.3", "fe80::1"])
def test_an_address_that_others_can_reach_needs_a_token(address: str) -> None:
    (line,) = refusals(f"adminPort = 8080\nadminAddress = {address}\n")
    assert line == (
        f"app.properties:5: adminAddress = {address}: other hosts can reach this address, so it needs adminToken or adminTokenFile"
    )
    assert read(f"adminAddress = {address}\n").settings.admin.port is None


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_a_loopback_address_needs_none(address: str) -> None:
    assert is_loopback(address)
    admin = read(f"adminPort = 1\nadminAddress = {address}\n").settings.admin
    assert admin == AdminSettings(1, address)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("adminPort = 65536", "adminPort = 65536: out of range"),
        ("adminAddress = localhost", "adminAddress = localhost: not an IP address"),
        ("adminTokenFile = ", "adminTokenFile = : not a path"),
        ("adminToken = short", "adminToken = ***: not a token; allowed: 16 to 256 printable ASCII"),
        ("adminToken = with blanks in the middle", "adminToken = ***: not a token"),
    ],
)
def test_a_wrong_value_of_metrics_or_page_is_refused_and_no_token_is_shown(line: str, words: str) -> None:
    (refusal,) = refusals(f"{line}\n")
    assert refusal.startswith(f"app.properties:4: {words}")


def test_one_token_is_enough() -> None:
    (refusal,) = refusals(f"adminToken = {TOKEN}\nadminTokenFile = token\n")
    assert refusal == ("app.properties:5: adminTokenFile and adminToken are both set; keep one")


def test_a_bad_token_is_one_problem() -> None:
    assert len(refusals("adminPort = 1\nadminAddress = 0.0.0.0\nadminToken = short\n")) == 1


def test_check_shows_the_file_of_the_token_and_not_the_token() -> None:
    shown = {each.key: each.value for each in effective(read(f"adminToken = {TOKEN}\n"))}
    assert shown["adminToken"] == "***"
    shown = {each.key: each.value for each in effective(read("adminTokenFile = /run/token\n"))}
    assert shown["adminTokenFile"] == "/run/token"
