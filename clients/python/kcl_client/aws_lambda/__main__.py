"""Exit code 2: nothing can be run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

from kcl_client._processor import ItemFailures, ShardStart
from kcl_client._run import run
from kcl_client.aws_lambda import TIMEOUT_S, LambdaProcessor
from kcl_client.aws_lambda._events import Source
from kcl_client.aws_lambda._runtime import (
    NoHandler,
    find_handler,
    function_name_of,
    set_region,
    set_up_logging,
    set_variables,
)

_PROGRAM: Final = "kcl_client.aws_lambda"


class _Child(LambdaProcessor):
    def initialize(self, start: ShardStart) -> None:
        set_region(os.environ)
        super().initialize(start)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"python3 -m {_PROGRAM}", description="Run a handler of AWS Lambda.")
    add = parser.add_argument
    add("handler", help="MODULE.FUNCTION, such as app.handler or folder/app.handler")
    add("--function-name", metavar="NAME", help="in context and ARNs; default: that of the module")
    add("--stream-arn", metavar="ARN", help="of the stream; default: what the daemon says")
    add(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="what context.get_remaining_time_in_millis() begins with; default: 900",
    )
    add(
        "--attempts",
        type=int,
        default=3,
        metavar="N",
        help="how often the lowest record in batchItemFailures is delivered before it is rejected; default: 3",
    )
    add(
        "--reject-named",
        action="store_true",
        help="reject the records in batchItemFailures at once, and only them",
    )
    add("--tumbling-window", type=int, default=0, metavar="SECONDS", help="length of a window, up to 900")
    return parser


def main() -> None:
    given = _parser().parse_args()
    folder = Path(os.environ.get("LAMBDA_TASK_ROOT") or Path.cwd())
    name = (
        given.function_name or os.environ.get("AWS_LAMBDA_FUNCTION_NAME") or function_name_of(given.handler)
    )
    try:
        set_variables(os.environ, Source.of(os.environ, name, given.stream_arn), given.handler, folder)
        time.tzset()
        set_up_logging()
        processor = _Child(
            find_handler(given.handler, folder),
            function_name=name,
            stream_arn=given.stream_arn,
            timeout_s=given.timeout,
            tumbling_window_s=given.tumbling_window,
            item_failures=ItemFailures(given.attempts, given.reject_named),
        )
    except (NoHandler, ValueError) as error:
        sys.stderr.write(f"{_PROGRAM}: {error}\n")
        raise SystemExit(2) from None
    run(processor)


if __name__ == "__main__":
    main()
