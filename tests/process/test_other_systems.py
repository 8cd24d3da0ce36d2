"""macOS and Windows, as far as Linux can imitate them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.process.daemon import PROCESSORS, application, processes_in
from tests.process.imitations import LINUX_ONLY, MAC, WINDOWS, imitating, run_on
from tests.process.local import Local

ON_WINDOWS = "kcl-daemon runs on Linux and macOS; on Windows use WSL\n"


def test_a_mac_has_nothing_that_only_linux_has(tmp_path: Path) -> None:
    asked = (
        f"import importlib, os\nprint([(module, name) for module, names in {LINUX_ONLY!r}.items() for name in names"
        " if hasattr(importlib.import_module(module), name)], os.environ['KCL_POSIX_ONLY'])"
    )
    assert run_on(MAC, tmp_path / "mac", "-c", asked).stdout == "[] 1\n"


@pytest.mark.parametrize("preload", [False, True], ids=["started", "preloaded"])
def test_a_daemon_on_a_mac_delivers_and_stores_checkpoints(
    local: Local, tmp_path: Path, preload: bool
) -> None:
    name = f"mac-{'preloaded' if preload else 'started'}"
    with application(local, tmp_path, name, shards=2) as app:
        careful, mac = f"{PROCESSORS}.careful", imitating(MAC, tmp_path / "mac")
        with app.daemon(careful, {"childPreload": preload}, fresh=True, variables=mac) as daemon:
            app.put(3)
            app.wait_done()
            daemon.stop()
            app.assert_account()
            assert len(daemon.named("child_template_started")) == preload
            assert daemon.loud() == [], "no word of what a Mac does not have"


def test_the_demo_runs_on_a_mac(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    options = ("--records", "300", "--rate", "1000", "--shards", "2", "--plain", "--keep", str(keep))
    done = run_on(MAC, tmp_path / "mac", "-m", "kcl_daemon", "demo", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "lost 0"
    assert processes_in(keep) == []


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "kcl_daemon", "--help"),
        ("-m", "kcl_daemon", "check", "--properties", "no.properties"),
        (str(Path(sys.executable).with_name("kcl-daemon")), "local"),
        ("-m", "kcl_local"),
        ("-m", "kcl_client.run", "consumer:handle"),
        ("-c", "import kcl_daemon.cli"),
    ],
)
def test_on_windows_one_line_says_where_it_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_on(WINDOWS, tmp_path / "windows", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", ON_WINDOWS)
