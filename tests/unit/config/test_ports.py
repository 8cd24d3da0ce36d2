"""Ports in addresses are ports that there are; told when the file is read, not when the address is used."""

from __future__ import annotations

import pytest

from tests.unit.config.helpers import read, refusals

KEY = "metricsOtlpEndpoint"
HOSTS = ("http://a:", "https://[::1]:")


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_wrong_port_is_refused_with_file_key_and_value(host: str, port: str) -> None:
    (line,) = refusals(f"{KEY} = {host}{port}/x\n")
    assert line.startswith(f"app.properties:4: {KEY} = {host}{port}/x: {port} is not a port")
    assert "ports are 1 to 65535; allowed: " in line


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("port", ["1", "65535"])
def test_the_first_port_and_the_last_are_good(host: str, port: str) -> None:
    assert read(f"{KEY} = {host}{port}\n").texts[KEY] == f"{host}{port}"


def test_a_collector_without_a_port_is_good() -> None:
    assert read("metricsOtlpEndpoint = http://a/x\n").settings.metrics.otlp_endpoint == "http://a/x"
