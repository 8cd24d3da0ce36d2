"""A child that takes every record."""

from __future__ import annotations

import json
import sys

for line in sys.stdin:
    said = json.loads(line)
    print(json.dumps({"action": "status", "responseFor": said["action"]}), flush=True)  # noqa: T201 - the protocol
