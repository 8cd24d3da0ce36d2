"""`kcl-daemon init`: what is written, what is refused before anything is, and that nothing half is left."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from kcl_daemon.cli import main
from kcl_daemon.cli.init import LANGUAGES, Project, write
from kcl_daemon.config.load import interpret
from kcl_daemon.config.schema import document

EVERY = sorted(LANGUAGES)
COMMON = {"app.properties", "records.txt", "Dockerfile", "compose.yaml", "README.md", "out/.gitignore"}


def init(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, words)])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("language", EVERY)
def test_it_says_what_it_wrote_and_what_comes_next(tmp_path: Path, language: str) -> None:
    folder = tmp_path / "some" / "where"
    result = init(folder, "--language", language, "--stream", "clicks")
    assert (result.exit_code, result.stderr) == (0, "")
    paths, rest = result.stdout.split("\n\n")
    assert {str(Path(path).relative_to(folder)) for path in paths.splitlines()} == set(tree(folder))
    assert {*COMMON, "clicks-consumer.service"} <= set(tree(folder))
    assert len(rest.splitlines()) == 3
    assert rest.splitlines()[1].strip() == LANGUAGES[language].test
    assert all(b"@{" not in text and b"@@" not in text for text in tree(folder).values())


@pytest.mark.parametrize("language", EVERY)
def test_its_properties_are_good_and_explained(tmp_path: Path, language: str) -> None:
    texts = Project(language, "clicks", "my-app", "eu-west-2").files()
    loaded = interpret(texts["app.properties"].encode(), file="f", default_worker_id="w")
    assert loaded.warnings == ()
    settings = loaded.settings
    assert (settings.stream_name, settings.application_name) == ("clicks", "my-app")
    assert settings.endpoints.region_name == "eu-west-2"
    assert settings.retrieval.mode.value == "POLLING"
    assert list(Draft202012Validator(document()).iter_errors(yaml.safe_load(texts["app.properties"]))) == []
    assert max(map(len, texts["README.md"].splitlines())) < 140
    assert len(texts["README.md"].splitlines()) <= 40


def test_python_is_the_language_if_none_is_given(tmp_path: Path) -> None:
    assert init(tmp_path).exit_code == 0
    assert {"consumer.py", "test_consumer.py", "orders-consumer.service"} <= set(tree(tmp_path))
    text = (tmp_path / "app.properties").read_text()
    assert "\n# regionName: " in text


@pytest.mark.parametrize("language", ["node", "go", "shell"])
def test_scripts_can_be_started(tmp_path: Path, language: str) -> None:
    init(tmp_path, "--language", language)
    for path in tmp_path.iterdir():
        if path.is_file():
            assert bool(path.stat().st_mode & stat.S_IXUSR) is (path.suffix == ".sh"), path


def test_a_folder_with_other_files_is_fine(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    assert init(tmp_path).exit_code == 0
    assert (tmp_path / "mine").read_text() == "x"


@pytest.mark.parametrize("there", ["README.md", "out/.gitignore", "consumer.py"])
def test_a_file_that_is_there_stays(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    result = init(tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(tmp_path / there) in result.stderr
    assert "nothing was written" in result.stderr
    assert tree(tmp_path) == {there: b"mine"}
    assert init(tmp_path, "--force").exit_code == 0
    assert (tmp_path / there).read_text() != "mine"


def test_a_link_that_leads_nowhere_is_there_too(tmp_path: Path) -> None:
    (tmp_path / "README.md").symlink_to(tmp_path / "none")
    assert init(tmp_path).exit_code == 2
    assert init(tmp_path, "--force").exit_code == 0
    assert not (tmp_path / "README.md").is_symlink()
    assert not (tmp_path / "none").exists()


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "README.md").mkdir()
    result = init(tmp_path, "--force")
    assert result.exit_code == 2
    assert list(tmp_path.rglob("*")) == [tmp_path / "README.md"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stream", "a b"), "a b: not a valid name; allowed: 1 to 128 letters"),
        (("--stream", ""), "empty"),
        (("--application", "../../etc"), "not a valid name"),
        (("--application", "a\x1b[31m"), "a\\x1b[31m: not a valid name"),
        (("--application", "ab"), "3 to 237"),
        (("--region", "eu west"), "a region such as eu-west-1"),
        (("--language", "cobol"), "'cobol' is not one of"),
    ],
)
def test_a_bad_name_is_refused_before_anything_is_written(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    result = init(tmp_path / "new", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_longest_stream_has_a_name_for_its_application(tmp_path: Path) -> None:
    assert init(tmp_path, "--stream", "s" * 128).exit_code == 0


def test_a_stream_whose_name_cannot_begin_an_application_needs_one(tmp_path: Path) -> None:
    assert "--application" in init(tmp_path, "--stream", "-s").stderr
    assert tree(tmp_path) == {}


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs a place that refuses"
)
def test_where_nothing_can_be_written_it_says_so() -> None:
    result = init("/proc/self/project")
    assert result.exit_code == 1
    assert "nothing was written" in result.stderr


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert init(tmp_path / "file").exit_code == 2
    result = init(tmp_path / "file" / "below")
    assert result.exit_code == 1
    assert "nothing was written" in result.stderr


def test_files_of_a_failed_init_are_removed(tmp_path: Path) -> None:
    texts = {"a/one": "1", "b/two": "2", "b/" + "x" * 300: "3"}
    with pytest.raises(OSError, match="too long"):
        write(texts, tmp_path / "new", force=False)
    assert list(tmp_path.iterdir()) == []
