"""Local Kinesis, DynamoDB, STS, CloudWatch, S3, SNS and SQS endpoints for development and tests, and the demo."""

from __future__ import annotations

import sys
from typing import Final

if sys.platform == "win32":  # before anything is imported that Windows does not have
    sys.stderr.write("kcl-daemon runs on Linux and macOS; on Windows use WSL\n")
    raise SystemExit(2)

REGION: Final = "us-east-1"
ACCESS: Final = {
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_ACCESS_KEY_ID": "local",  # the endpoints accept any keys
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment variables for whoever calls the endpoints."""
