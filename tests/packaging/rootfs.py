"""Builds the Dockerfile's stages in plain root file systems, and runs what comes out: `python -m tests.packaging.rootfs`.

For machines without an engine. Runs as root in a mount namespace of its own (`unshare --mount`), so that nothing is left
mounted. Each stage is a layer over this machine's root; what the stage adds is that layer. The base images are not at
hand: a Python of this machine takes their place.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from tests.packaging.dockerfile import ROOT, Stage, stages

PYTHON: Final = Path(sys.base_prefix, "bin", "python3").resolve()
BASE_PATH: Final = f"{PYTHON.parent}:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_HANDED_ON: Final = ("PIP_", "SSL_", "REQUESTS_", "HTTP", "http", "NO_PROXY", "no_proxy")


class Built:
    """A stage, built.

    Attributes:
        root: its file system.
        layer: what it has added to its base.
    """

    def __init__(self, stage: Stage, work: Path, before: dict[str, Built]) -> None:
        self.stage = stage
        self.root, self.layer = work / "root", work / "layer"
        self.environment = {"PATH": BASE_PATH}
        self.workdir = "/"
        self._before = before
        _overlay(work, self.root, self.layer)
        _as_base_image(self.root)

    def build(self) -> None:
        """Carry out its instructions."""
        for each in self.stage.instructions:
            match each.name:
                case "WORKDIR":
                    self.workdir = each.words
                    self._inside(self.workdir).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(each.words)
                case "RUN":
                    self._run(each.words)
                case "ENV":
                    self._set(each.words)
                case "USER" | "STOPSIGNAL" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                    pass  # told with the stage
                case _:
                    raise ValueError(f"{each.name} is not known here")

    def chroot(self, *options: str) -> list[str]:
        """The beginning of a command line that runs in here."""
        return ["chroot", *options, str(self.root)]

    def _inside(self, path: str) -> Path:
        return self.root / os.path.join(self.workdir, path).lstrip("/")  # noqa: PTH118 - an absolute path wins

    def _copy(self, words: str) -> None:
        *sources, target = words.split()
        base = ROOT
        if sources[0].startswith("--from="):
            base = self._before[sources.pop(0).partition("=")[2]].root
        for source in sources:
            found, to = base / source.lstrip("/"), self._inside(target)
            if found.is_dir():
                shutil.copytree(
                    found,
                    to,
                    symlinks=True,
                    dirs_exist_ok=True,
                    ignore=None if base != ROOT else shutil.ignore_patterns("__pycache__", "*.pyc"),
                )
            else:
                shutil.copy2(found, to / found.name if target.endswith("/") else to)

    def _run(self, words: str) -> None:
        handed_on = {name: value for name, value in os.environ.items() if name.startswith(_HANDED_ON)}
        subprocess.run(
            [*self.chroot(), "/bin/sh", "-c", f"cd {self.workdir} && {words}"],
            env={**handed_on, **self.environment, "HOME": "/root"},
            check=True,
            stdout=sys.stderr,
            timeout=300,
        )

    def _set(self, words: str) -> None:
        for name, value in re.findall(r"(\w+)=(\S+)", words):
            self.environment[name] = value.replace("$PATH", self.environment["PATH"])


def _overlay(work: Path, root: Path, layer: Path) -> None:
    work.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(work)], check=True)
    scratch = work / "scratch"
    for folder in (root, layer, scratch):
        folder.mkdir()
    options = f"lowerdir=/,upperdir={layer},workdir={scratch}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
    for name in ("dev", "proc"):
        subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)


def _as_base_image(root: Path) -> None:
    """What the official image of Python promises: it is first in the path, and everybody may run it."""
    for name in ("python", "python3"):
        link = root / str(PYTHON.with_name(name)).lstrip("/")
        if not link.exists():
            link.symlink_to(PYTHON.name)
    for folder in PYTHON.parents:
        inside = root / str(folder).lstrip("/")
        inside.chmod(inside.stat().st_mode | 0o111)


def _sizes(layer: Path, packed: Path) -> dict[str, int]:
    """Bytes of a layer, plain and as a registry keeps it; without what the stand-in of the base image added."""
    plain = 0
    with (
        gzip.open(packed, "wb", compresslevel=6) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        for path in sorted(layer.rglob("*")):
            if path.is_file() or path.is_symlink():
                plain += path.lstat().st_size
                archive.add(path, str(path.relative_to(layer)), recursive=False)
    return {"plain": plain, "packed": packed.stat().st_size}


def _health(image: Built, user: str) -> str:
    """What the health check says where nothing is served."""
    return _output(image, user, json.loads(image.stage.last("HEALTHCHECK").partition("CMD ")[2]))


def _output(image: Built, user: str, command: list[str]) -> str:
    done = subprocess.run(
        [*image.chroot(f"--userspec={user}"), *command],
        env=image.environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def main(work: Path, application: Path, environment: dict[str, str]) -> int:
    """Build; print one JSON object about the image; then run it on an application as an engine would.

    Args:
        work: an empty folder.
        application: whose files are put into the working directory.
        environment: more variables of the container.
    """
    built: dict[str, Built] = {}
    for stage in stages():
        built[stage.name] = Built(stage, work / stage.name, built)
        built[stage.name].build()
    image = list(built.values())[-1]
    user = image.stage.last("USER")
    reported = {
        "sizes": _sizes(image.layer, work / "layer.tar.gz"),
        "health": _health(image, user),
        "version": _output(image, user, ["kcl-daemon", "--version"]),
    }
    sys.stdout.write(f"{json.dumps(reported)}\n")
    sys.stdout.flush()
    shutil.copytree(application, image.root / image.workdir.lstrip("/"), dirs_exist_ok=True)
    entry = json.loads(image.stage.last("ENTRYPOINT"))
    script = f'mount -t proc proc {image.root}/proc && cd {image.root} && exec "$@"'
    os.environ.clear()
    os.environ.update({**image.environment, **environment})
    os.execvp(
        "/usr/bin/unshare",
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--", "/bin/sh", "-c", script, "sh"),
            *image.chroot(f"--userspec={user}"),
            *("/bin/sh", "-c", f'cd {image.workdir} && exec "$@"', "sh"),
            *entry,
            *("--properties", "app.properties"),
        ],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
