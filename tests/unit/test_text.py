"""What comes from outside is shown on one line and without credentials."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.text import MASK, MASKED_CHARACTERS, encodable, is_secret_name, masked, on_one_line, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key AKIAIOSFODNN7EXAMPLE here", f"key {MASK} here"),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", MASK),
        ("aws_secret_access_key = abc/def", f"aws_secret_access_key = {MASK}"),
        ('{"password": "hunter2"}', f'{{"password": "{MASK}"}}'),
        ("https://me:pass@host/x", f"https://{MASK}@host/x"),
        (
            "Authorization: AWS4-HMAC-SHA256 Credential=x, Signature=y",
            f"Authorization: AWS4-HMAC-SHA256 {MASK}",
        ),
        ("https://h/?X-Amz-Signature=abc123&a=b", f"https://h/?X-Amz-Signature={MASK}&a=b"),
        ("sc://h:15002/;use_ssl=true;token=SECRET", f"sc://h:15002/;use_ssl=true;token={MASK}"),
        ("to sc://h/;TOKEN=a.b/c==;user_id=me failed", f"to sc://h/;TOKEN={MASK};user_id=me failed"),
        ("sc://h/;password=abc;secret=def;x=y", f"sc://h/;password={MASK};secret={MASK};x=y"),
        ('"https://h/a?token=abc&b=c"', f'"https://h/a?token={MASK}&b=c"'),
        ("https://h/?a=b&access_token=abc", f"https://h/?a=b&access_token={MASK}"),
        (
            "https://a.blob.core.windows.net/c?sv=2024&sig=abc%3D&se=x",
            f"https://a.blob.core.windows.net/c?sv=2024&sig={MASK}&se=x",
        ),
        ("https://h/?api_key=abc", f"https://h/?api_key={MASK}"),
        ("sc://h/;sig=abc;x=y", f"sc://h/;sig={MASK};x=y"),
    ],
)
def test_credentials_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "49640000000000000000000000000000000000000000000000000115",
        "shardId-000000000000",
        "a9993e364706816aba3e25717850c26c9cd0d89d",
        "http://127.0.0.1:4567/",
        "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks",
        "the password was wrong",
        "https://h/list?nextToken=abc&pageToken=def",
        "sc://h:15002/;use_ssl=true;user_id=me",
        "token=49640; concurrency_token=7",
    ],
)
def test_text_without_credentials_is_not_masked(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("aws_secret_access_key", True),
        ("sessionToken", True),
        ("Authorization", True),
        ("concurrency_token", False),
        ("AwsCredentialsProvider", False),
        ("shard_id", False),
    ],
)
def test_a_name_tells_a_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_a_value_under_a_secret_name_is_not_shown_at_all() -> None:
    assert shown("abc", name="mySecret") == MASK
    assert shown("", name="mySecret") == ""


def test_a_long_value_is_cut_with_its_length() -> None:
    assert shown("x" * 1000) == "x" * 200 + "... (1000 characters)"


def test_a_long_text_of_control_characters_is_cut_before_it_is_escaped() -> None:
    text = "\x1b" * MASKED_CHARACTERS
    began_s = time.thread_time()
    for _ in range(20):
        assert shown(text) == "\\x1b" * 50 + f"... ({MASKED_CHARACTERS} characters)"
    assert time.thread_time() - began_s < 0.5, "it was 1 s and more"


def test_a_secret_at_the_cut_is_masked() -> None:
    assert "hunter2" not in shown("x" * 180 + " password=hunter2hunter2hunter2")


def test_control_characters_are_escaped() -> None:
    assert on_one_line("a\x1b[31m\nb\u2028\ud800") == "a\\x1b[31m\\nb\\u2028\\ud800"


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_anything_can_be_shown(text: str) -> None:
    assert shown(text).isprintable()
    encodable(text).encode()


def test_a_long_text_is_masked_before_it_is_cut() -> None:
    filler = "x" * (MASKED_CHARACTERS - 40)
    assert masked(f"password=hunter2 {filler * 2}").startswith(f"password={MASK} xxx")
    for secret in ("password=hunter2", "https://me:hunter2@host/", "?token=hunter2"):
        for shift in range(40):
            text = filler + "x" * shift + " " + secret + "y" * 100
            assert "hunt" not in masked(text), shift
    assert masked("x" * 100_000).endswith("... (100000 characters)")
    assert len(masked("x" * 10_000_000)) < MASKED_CHARACTERS + 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=secret=foo", f"a=secret={MASK}"),
        ("secret secret: foo", f"secret secret: {MASK}"),
        ("x.y-SECRET_KEY : 'foo'", f"x.y-SECRET_KEY : '{MASK}'"),
        ("admin_token_file=/a admin_token=b", f"admin_token_file=/a admin_token={MASK}"),
        ("secret=a secret=b,secret=c", f"secret={MASK} secret={MASK},secret={MASK}"),
        ("-secret=a .passwd=b", f"-secret={MASK} .passwd={MASK}"),
    ],
)
def test_an_assignment_is_found_wherever_it_stands(text: str, expected: str) -> None:
    assert masked(text) == expected
