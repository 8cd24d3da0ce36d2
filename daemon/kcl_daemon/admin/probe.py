"""`python -m kcl_daemon.admin.probe [livez|readyz]`: a container's health check.

Exit code 0 is healthy. It runs often, so it imports almost nothing and reads only environment variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Final

from kcl_daemon.config.metrics_and_page import LOOPBACK, request_address
from kcl_daemon.config.properties import given_for

_QUESTIONS: Final = ("livez", "readyz")
# Container health checks usually wait five seconds.
_PATIENCE_S: Final = 4.0
_SHOWN_BYTES: Final = 500


def probe(question: str, environment: Mapping[str, str], timeout_s: float = _PATIENCE_S) -> tuple[bool, str]:
    """Whether the daemon is healthy, and its answer; without a port it is."""
    port = given_for("adminPort", environment)
    if port is None:
        return True, "KCL_ADMIN_PORT is not set: the process runs, more is not known"
    try:
        number, where = _port(*port), _where(environment)
    except ValueError as error:
        return False, str(error)
    connection = HTTPConnection(where, number, timeout=timeout_s)
    try:
        connection.request("GET", f"/{question}")
        answer = connection.getresponse()
        text = answer.read(_SHOWN_BYTES).decode("utf-8", "replace").strip()
    except (OSError, HTTPException) as error:
        return False, f"no answer from {where} at port {number}: {error or type(error).__name__}"
    finally:
        connection.close()
    return answer.status == 200, text or f"status {answer.status}"


def _port(variable: str, value: str) -> int:
    if not value.strip().isdecimal() or not 0 < int(value) < 2**16:
        raise ValueError(f"{variable} = {value!r} is no port that can be asked")
    return int(value)


def _where(environment: Mapping[str, str]) -> str:
    variable, value = given_for("adminAddress", environment) or ("", LOOPBACK)
    try:
        return request_address(value.strip())
    except ValueError:
        raise ValueError(f"{variable} = {value!r} is no address that can be asked") from None


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    question = words[0] if words else _QUESTIONS[0]
    if len(words) > 1 or question not in _QUESTIONS:
        sys.stderr.write(f"usage: python -m kcl_daemon.admin.probe [{'|'.join(_QUESTIONS)}]\n")
        return 2
    is_well, text = probe(question, environment)
    sys.stdout.write(f"{' '.join(text.split())}\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
