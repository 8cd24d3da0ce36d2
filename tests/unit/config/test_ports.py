"""Ports in addresses are ports that there are; told when the file is read, not when the address is used."""

from __future__ import annotations

import pytest

from tests.unit.config.helpers import GOOD, read, refusals

LISTENS = "sparkPipeline = a:b\nsparkEngineTokenFile = t\nsparkEngineCertificate = c\n"
SPARK = GOOD.replace("executableName = consumer.py\n", LISTENS)
ADDRESSES = (
    ("sparkEngine", "host:"),
    ("sparkEngineListen", "[::1]:"),
    ("metricsOtlpEndpoint", "http://a:"),
    ("metricsOtlpEndpoint", "https://[::1]:"),
)


@pytest.mark.parametrize(("key", "host"), ADDRESSES)
@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_what_is_no_port_is_refused_with_file_key_and_value(key: str, host: str, port: str) -> None:
    path = "/x" if key.startswith("metrics") else ""
    (line,) = refusals(f"{key} = {host}{port}{path}\n", base=SPARK)
    assert line.startswith(f"app.properties:6: {key} = {host}{port}{path}: {port} is not a port")
    assert "ports are 1 to 65535; allowed: " in line


@pytest.mark.parametrize(("key", "host"), ADDRESSES)
@pytest.mark.parametrize("port", ["1", "65535"])
def test_the_first_port_and_the_last_are_good(key: str, host: str, port: str) -> None:
    loaded = read(f"{key} = {host}{port}\n", base=SPARK)
    assert loaded.texts[key] == f"{host}{port}"


def test_a_collector_without_a_port_is_good() -> None:
    assert read("metricsOtlpEndpoint = http://a/x\n").settings.metrics.otlp_endpoint == "http://a/x"
