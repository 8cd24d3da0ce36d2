"""Numbers and durations: what their texts mean and which are refused."""

from __future__ import annotations

import sys
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.config.kinds import LONG_MAX, InvalidValue, ValueKind, check_port, duration, number

PART = number(above=0, high=1)
RATE = number(above=0, high=inf, unit="KiB per second")


def reason(kind: ValueKind[object], text: str) -> str:
    with pytest.raises(InvalidValue) as caught:
        kind.read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5", 0.5), (" +1 ", 1.0), (".25", 0.25), ("1.", 1.0), ("5e-1", 0.5), ("0.01E+2", 1.0)],
)
def test_a_number_is_decimal_with_sign_and_exponent(text: str, value: float) -> None:
    assert PART.read(text) == value


@pytest.mark.parametrize(
    "text", ["half", "0,5", "1_0", "0x1", "nan", "Infinity", ".", "e5", "1e", "1 0", "0.5f", "\u0661"]
)
def test_a_text_that_is_no_decimal_number_is_refused(text: str) -> None:
    assert reason(RATE, text) == "not a number"


def test_an_empty_number_is_refused() -> None:
    assert reason(PART, " ").startswith("empty")


@pytest.mark.parametrize("text", ["0", "-0.0", "-0.5", "1.0000001", "1e-400"])
def test_a_number_out_of_its_range_is_refused(text: str) -> None:
    assert reason(PART, text) == "out of range"


@pytest.mark.parametrize("text", ["1e999", "9" * 5000])
def test_a_number_that_is_infinite_is_refused_also_where_there_is_no_limit(text: str) -> None:
    assert reason(RATE, text) == "out of range"


@given(st.floats(min_value=0, max_value=sys.float_info.max, exclude_min=True))
def test_a_number_without_a_limit_is_read_as_it_was_written(value: float) -> None:
    assert RATE.read(repr(value)) == value


def test_the_kind_of_a_number_describes_its_range() -> None:
    assert PART.allowed == "more than 0, at most 1"
    assert RATE.allowed == "more than 0 KiB per second"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("P1D", 86_400.0),
        ("PT15M", 900.0),
        (" p2dt1h ", 176_400.0),
        ("PT1H1M1S", 3_661.0),
        ("PT0.5S", 0.5),
        ("PT1,25S", 1.25),
        ("P0DT1S", 1.0),
        ("PT36H", 129_600.0),
    ],
)
def test_a_duration_gives_seconds(text: str, seconds: float) -> None:
    assert duration().read(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "15m",
        "900",
        "P",
        "PT",
        "P1DT",
        "P1M",
        "P1W",
        "P1Y",
        "PT1M1H",
        "PT1.5H",
        "PT-1S",
        "-P1D",
        "P 1D",
        "P\u0661D",
    ],
)
def test_a_text_that_java_does_not_read_or_nobody_means_is_no_duration(text: str) -> None:
    assert reason(duration(), text) == "not a duration"


@pytest.mark.parametrize("text", ["PT0S", "P0D", f"PT{LONG_MAX * 10}S", f"P{'9' * 5000}D"])
def test_a_duration_of_zero_or_without_end_is_out_of_range(text: str) -> None:
    assert reason(duration(), text) == "out of range"


@given(
    days=st.integers(0, 10_000),
    hours=st.integers(0, 100),
    minutes=st.integers(0, 100),
    seconds=st.integers(1, 100),
)
def test_the_parts_of_a_duration_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    expected = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert duration().read(f"P{days}DT{hours}H{minutes}M{seconds}S") == expected


@pytest.mark.parametrize("text", ["P1D", "PT15M", "PT1H", "P2DT3H4M5S", "PT0.5S", "PT59S", "PT90061.25S"])
def test_a_duration_is_written_as_iso_8601_has_it(text: str) -> None:
    kind = duration()
    assert kind.written is not None
    assert kind.written(kind.read(text)) == text


@given(st.floats(min_value=1e-9, max_value=2.0**53))
def test_a_duration_that_is_written_is_read_again(seconds: float) -> None:
    kind = duration()
    assert kind.written is not None
    assert kind.read(kind.written(seconds)) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize("digits", [None, "1", "65535", "00080"])
def test_a_port_is_one_that_there_is(digits: str | None) -> None:
    check_port(digits)


@pytest.mark.parametrize("digits", ["0", "65536", "99999"])
def test_a_number_that_is_no_port_is_refused_with_the_range_of_ports(digits: str) -> None:
    with pytest.raises(InvalidValue, match=f"{digits} is not a port; ports are 1 to 65535"):
        check_port(digits)
