"""kcl-daemon: consumes Amazon Kinesis Data Streams for programs in any language, without a JVM."""

import sys

__version__ = "0.1.0"

# Before anything is imported that Windows does not have.
if sys.platform == "win32":
    sys.stderr.write("kcl-daemon runs on Linux and macOS; on Windows use WSL\n")
    raise SystemExit(2)
