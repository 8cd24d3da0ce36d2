"""The properties in an editor: the language server that editors use for YAML, with our schema, on a file written with colons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_daemon.cli.init import Project
from kcl_daemon.config.schema import document
from tests.dropin.obtain import yaml_language_server

pytestmark = pytest.mark.timeout(200)

FILE: Final = "app.properties"
# Zero-based lines: 4 misspelt, 5 out of range, 6 no such word, 7 in small letters, which is right.
TEXT: Final = """\
# yaml-language-server: $schema=kcl-daemon.schema.json
executableName: python3 -m kcl_client.run consumer:handle
streamName: orders
applicationName: billing
failoverTimeMilis: 9000
maxRecords: 20000
metricsLevel: LOUD
retrievalMode: polling

"""


class Server:
    """One conversation over stdio."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._number = 0

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Answers what the server asks meanwhile; it must not look for schemas elsewhere."""
        while True:
            message = self._receive()
            if "method" in message and "id" in message:
                settings = {"schemaStore": {"enable": False}}
                items = message.get("params", {}).get("items", ())
                answer = [settings if item.get("section") == "yaml" else {} for item in items] or None
                self.send({"id": message["id"], "result": answer})
            elif wanted(message):
                return message

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        number = self._number
        self.send({"id": number, "method": method, "params": params})
        return self.until(lambda message: message.get("id") == number)["result"]

    def problems(self, uri: str, text: str) -> dict[int, str]:
        """Of a file that is opened: by line."""
        opened = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.send({"method": "textDocument/didOpen", "params": {"textDocument": opened}})
        found = self.until(lambda message: message.get("method") == "textDocument/publishDiagnostics")
        return {
            each["range"]["start"]["line"]: str(each["message"]) for each in found["params"]["diagnostics"]
        }

    def suggested(self, uri: str, line: int, character: int) -> set[str]:
        place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        found = self.ask("textDocument/completion", place)
        return {item["label"] for item in (found if isinstance(found, list) else found["items"])}


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    program = yaml_language_server()
    (tmp_path / "kcl-daemon.schema.json").write_text(json.dumps(document()))
    with subprocess.Popen(
        ["node", str(program), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        server = Server(process)
        try:
            capabilities = {"workspace": {"configuration": True}, "textDocument": {"completion": {}}}
            server.ask(
                "initialize",
                {"processId": None, "rootUri": tmp_path.as_uri(), "capabilities": capabilities},
            )
            server.send({"method": "initialized", "params": {}})
            yield server
        finally:
            process.kill()


def test_keys_and_values_are_underlined_completed_and_explained(server: Server, tmp_path: Path) -> None:
    uri = (tmp_path / FILE).as_uri()
    problems = server.problems(uri, TEXT)
    assert set(problems) == {4, 5, 6}
    assert "failoverTimeMilis" in problems[4]
    assert "10000" in problems[5]
    assert '"SUMMARY"' in problems[6]
    assert {"failoverTimeMillis", "sparkPipeline", "adminPort"} <= server.suggested(uri, 8, 0)
    assert {"POLLING", "FANOUT"} <= server.suggested(uri, 7, 15)
    place = {"textDocument": {"uri": uri}, "position": {"line": 5, "character": 2}}
    assert "Maximum number of records in one read" in json.dumps(server.ask("textDocument/hover", place))


@pytest.mark.parametrize("language", ["python", "shell", "spark"])
def test_nothing_is_underlined_in_a_new_project(server: Server, tmp_path: Path, language: str) -> None:
    text = Project(language, "orders", "orders-consumer", None).files()[FILE]
    assert server.problems((tmp_path / FILE).as_uri(), text) == {}
