"""The properties file that the demo writes: read back as Java would, and as the daemon does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import javaproperties
from hypothesis import given
from hypothesis import strategies as st

from kcl_local.demo.stream import LAUNCHER, PROCESSOR, Urls, escaped, executable_name, properties_text


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text == text.strip())
)
def test_any_value_comes_back_as_it_was(value: str) -> None:
    assert javaproperties.loads(f"key = {escaped(value)}\n") == {"key": value}


URLS = Urls("http://127.0.0.1:1", "http://127.0.0.1:2")
OWN = {"executableName": "/usr/bin/python3 -m x", "streamName": "stream", "workerId": "worker"}


def test_the_file_says_where_the_endpoints_are() -> None:
    values = javaproperties.loads(properties_text(URLS, OWN, {}))
    assert values["kinesisEndpoint"] == "http://127.0.0.1:1"
    assert values["dynamoDBEndpoint"] == "http://127.0.0.1:2"
    assert values["executableName"] == "/usr/bin/python3 -m x"


def test_further_keys_replace_those_of_the_demo() -> None:
    more = {"idleTimeBetweenReadsInMillis": "1000", "failoverTimeMillis": "2000"}
    values = javaproperties.loads(properties_text(URLS, OWN, more))
    assert values["idleTimeBetweenReadsInMillis"] == "1000"
    assert values["failoverTimeMillis"] == "2000"


def test_a_plain_python_is_named_directly(tmp_path: Path) -> None:
    assert executable_name(tmp_path, "/usr/bin/python3") == f"/usr/bin/python3 -m {PROCESSOR}"
    assert list(tmp_path.iterdir()) == []


def test_a_python_with_a_blank_in_its_path_is_started_by_a_launcher(tmp_path: Path) -> None:
    odd = tmp_path / "with a blank and 'quotes'"
    odd.mkdir()
    python = odd / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; print(sys.argv[1:])" "$@"\n')
    python.chmod(0o700)
    name = executable_name(tmp_path, str(python))
    assert " " not in name
    done = subprocess.run([name], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"['-m', '{PROCESSOR}']\n"
    assert os.access(tmp_path / LAUNCHER, os.X_OK)
