"""Who is answered: by method, by the name that was asked for, by token."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.admin.site import AdminAccess, AdminRequest, host_name

TOKEN = "0123456789abcdef"
LOCAL = AdminAccess("127.0.0.1")
OPEN = AdminAccess("0.0.0.0", TOKEN)


def status(access: AdminAccess, request: AdminRequest) -> int:
    """Of the refusal; 200: there is none."""
    refusal = access.refusal(request)
    return 200 if refusal is None else refusal.status


def basic(password: str, user: str = "me") -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.:80",
        "127.0.0.1",
        "127.0.0.1:8080",
        "[::1]:8080",
        "127.9.9.9",
    ],
)
def test_on_loopback_it_answers_to_names_of_this_machine(host: str) -> None:
    assert status(LOCAL, AdminRequest("GET", "/", host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.1.2.3",
        "0.0.0.0",
        "[::1",
        "[::1]x",
        "localhost:80:80",
        "localhost:evil",
        "me@localhost",
        "2130706433",
        "127.1",
    ],
)
def test_a_foreign_host_name_is_refused_on_loopback(host: str) -> None:
    """Else any page in a browser of this machine could read this (DNS rebinding)."""
    assert status(LOCAL, AdminRequest("GET", "/", host)) == 421
    assert status(LOCAL, AdminRequest("GET", "/livez", host)) == 421


def test_the_servers_own_address_is_an_allowed_host() -> None:
    assert status(AdminAccess("::1"), AdminRequest("GET", "/", "[0:0::1]:1")) == 200
    assert host_name("[0:0::1]:1") == "::1"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
def test_a_method_other_than_get_and_head_is_refused(method: str) -> None:
    refusal = LOCAL.refusal(AdminRequest(method, "/", "localhost"))
    assert refusal is not None
    assert (refusal.status, refusal.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("authorization", "answer"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (basic(TOKEN), 200),
        (basic(TOKEN, user=""), 200),
        ("", 401),
        ("Bearer", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Digest {TOKEN}", 401),
        (TOKEN, 401),
        (basic("wrong"), 401),
        ("Basic !!!", 401),
        ("Basic " + b64encode(b"\xff\xfe:x").decode(), 401),
        ("Bearer \u00e9", 401),
        ("Basic \u00e9", 401),
        ("Basic " + "\xff" * 10_000, 401),
        ("Basic =", 401),
        ("\xa0\x85", 401),
    ],
)
def test_where_there_is_a_token_it_has_to_be_shown(authorization: str, answer: int) -> None:
    request = AdminRequest("GET", "/status.json", "any.name", authorization)
    assert status(OPEN, request) == answer
    if answer == 401:
        refusal = OPEN.refusal(request)
        assert refusal is not None
        assert refusal.headers["WWW-Authenticate"].startswith("Basic ")
        assert TOKEN.encode() not in refusal.body


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_no_token(path: str) -> None:
    assert status(OPEN, AdminRequest("GET", path, "10.0.0.1:8080")) == 200


@given(st.text(max_size=40))
def test_any_host_or_token_header_is_answered_with_a_refusal(header: str) -> None:
    assert status(OPEN, AdminRequest("GET", "/", header, header)) == 401
    assert status(LOCAL, AdminRequest("GET", "/", f"x{header}")) == 421
