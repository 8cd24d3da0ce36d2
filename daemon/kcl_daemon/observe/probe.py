"""`python -m kcl_daemon.observe.probe [livez|readyz]`: asks the daemon of this container how it is; for health checks.

Owns the exit code: 0 is well, 1 is not. Imports next to nothing, because it is started every few seconds. The port is
that of the variable `KCL_ADMIN_PORT`; one that stands in the properties file alone is not known here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Final

_VARIABLES: Final = ("KCL_ADMIN_PORT", "KCL_ADMINPORT")
_QUESTIONS: Final = ("livez", "readyz")
# Less than the five seconds that a health check of a container usually has.
_PATIENCE_S: Final = 4.0
_SHOWN_BYTES: Final = 500


def probe(question: str, environment: Mapping[str, str], patience_s: float = _PATIENCE_S) -> tuple[bool, str]:
    """Whether the daemon is well, and what it says.

    Where nothing is served there is nobody to ask: a daemon that has not ended is taken to be well.

    Args:
        question: `livez` or `readyz`.
        environment: of this process, which is that of the daemon in a container.
        patience_s: for the whole answer's beginning.
    """
    port = next((environment[name] for name in _VARIABLES if environment.get(name)), None)
    if port is None:
        return True, f"{_VARIABLES[0]} is not set: the process runs, more is not known"
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        return False, f"{_VARIABLES[0]} = {port!r} is no port that can be asked"
    connection = HTTPConnection("127.0.0.1", int(port), timeout=patience_s)
    try:
        connection.request("GET", f"/{question}")
        answer = connection.getresponse()
        text = answer.read(_SHOWN_BYTES).decode("utf-8", "replace").strip()
    except (OSError, HTTPException) as error:
        return False, f"no answer from 127.0.0.1:{port}: {error or type(error).__name__}"
    finally:
        connection.close()
    return answer.status == 200, text or f"status {answer.status}"


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Ask, print the answer in one line, give the exit code; 2 for a wrong command line."""
    question = words[0] if words else _QUESTIONS[0]
    if len(words) > 1 or question not in _QUESTIONS:
        sys.stderr.write(f"usage: python -m kcl_daemon.observe.probe [{'|'.join(_QUESTIONS)}]\n")
        return 2
    is_well, text = probe(question, environment)
    sys.stdout.write(f"{' '.join(text.split())}\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
