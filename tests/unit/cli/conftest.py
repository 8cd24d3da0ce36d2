"""What several tests of the command line begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

# Nothing listens on port 1.
_PROPERTIES = """\
executableName = true
streamName = orders
applicationName = billing
regionName = eu-west-1
dynamoDBEndpoint = http://127.0.0.1:1
kinesisEndpoint = http://127.0.0.1:1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a properties file whose endpoints do not answer, and credentials of nobody."""
    monkeypatch.chdir(tmp_path)
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "nobody"),
        ("AWS_SECRET_ACCESS_KEY", "nothing"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    (tmp_path / "app.properties").write_text(_PROPERTIES, "ascii")
    return tmp_path
