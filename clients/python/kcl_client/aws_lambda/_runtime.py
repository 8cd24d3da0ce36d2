"""What surrounds a handler in AWS Lambda."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from kcl_client._target import stdout_as_stderr
from kcl_client.aws_lambda._events import STREAM_ARN, Event, Source
from kcl_client.logs import DaemonLogHandler

Handler = Callable[[Event, Any], object]

_VERSION: Final = "$LATEST"
_MEMORY_MB: Final = "128"
_LOG_LEVEL: Final = "AWS_LAMBDA_LOG_LEVEL"
_LOG_MESSAGES: Final = "KCL_LOG_MESSAGES"
_FUNCTION_NAME: Final = "AWS_LAMBDA_FUNCTION_NAME"
_TASK_ROOT: Final = "LAMBDA_TASK_ROOT"


def new_id() -> str:
    return str(UUID(bytes=os.urandom(16), version=4))


def monotonic_s() -> float:
    return time.monotonic()  # noqa: TID251 - the client has no clock port


def sleep_s(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - as above


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def function_name_of(handler: str) -> str:
    return handler.rpartition(".")[0].replace("/", ".").rpartition(".")[2] or handler


def set_variables(environment: MutableMapping[str, str], source: Source, handler: str, folder: Path) -> None:
    """What is set already stays."""
    today = datetime.fromtimestamp(now_ms() / 1000, UTC)
    name = environment.setdefault(_FUNCTION_NAME, source.function_name)
    python = f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}"
    for variable, value in {
        "AWS_LAMBDA_FUNCTION_VERSION": _VERSION,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": _MEMORY_MB,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": f"{today:%Y/%m/%d}/[{_VERSION}]{new_id().replace('-', '')}",
        "AWS_EXECUTION_ENV": python,
        _TASK_ROOT: str(folder),
        "LAMBDA_RUNTIME_DIR": str(Path(__file__).parent),
        "_HANDLER": handler,
        "TZ": ":UTC",
    }.items():
        environment.setdefault(variable, value)
    set_region(environment)


def set_region(environment: MutableMapping[str, str]) -> None:
    """Of the stream, where it is known: with `childPreload` not before the shard is."""
    told = environment.get(STREAM_ARN, "").split(":")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "".join(told[3:4])
    if region:
        environment.setdefault("AWS_REGION", region)
        environment.setdefault("AWS_DEFAULT_REGION", region)


class LambdaContext:
    """Of one invocation. `client_context` and `identity` are None: only mobile apps have them."""

    client_context: None = None
    identity: None = None
    tenant_id: None = None

    def __init__(self, source: Source, timeout_s: float, clock: Callable[[], float] = monotonic_s) -> None:
        self.aws_request_id = new_id()
        self.function_name = source.function_name
        self.function_version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", _VERSION)
        self.invoked_function_arn = source.function_arn
        self.memory_limit_in_mb = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", _MEMORY_MB)
        self.log_group_name = os.environ.get("AWS_LAMBDA_LOG_GROUP_NAME")
        self.log_stream_name = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME")
        self._clock = clock
        self._until_s = clock() + timeout_s

    def get_remaining_time_in_millis(self) -> int:
        """Down to 0. Nothing happens then: the daemon's `timeoutInSeconds` ends what takes too long."""
        return max(0, int((self._until_s - self._clock()) * 1000))

    def log(self, message: object) -> None:
        sys.stdout.write(str(message))


def check_answer(answer: object) -> object:
    """TypeError or ValueError if it cannot be sent as JSON, which fails an invocation in Lambda, too."""
    json.dumps(answer, default=_as_number)
    return answer


def _as_number(value: object) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"a handler must return what JSON can say, not {type(value).__name__}: {value!r:.200}")


class _RequestId(logging.Filter):
    current = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.aws_request_id = self.current
        return True


_request_id: Final = _RequestId()


def begin_invocation(context: LambdaContext) -> None:
    _request_id.current = context.aws_request_id


def set_up_logging() -> None:
    """As Lambda's runtime does: `logging.basicConfig` in user code then does nothing."""
    if os.environ.get(_LOG_MESSAGES) == "true":
        handler: logging.Handler = DaemonLogHandler()
    else:
        handler = logging.StreamHandler()
        form = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"
        formatter = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    handler.addFilter(_request_id)
    logging.getLogger().addHandler(handler)
    if (level := os.environ.get(_LOG_LEVEL, "").upper()) in logging.getLevelNamesMapping():
        logging.getLogger().setLevel(level)


class NoHandler(Exception): ...


def find_handler(text: str, folder: Path) -> Handler:
    """What the module prints meanwhile goes to stderr."""
    path, _, name = text.rpartition(".")
    module_name = path.replace("/", ".")
    if not all((*module_name.split("."), name)):
        raise NoHandler(f"the handler must be MODULE.FUNCTION, such as app.handler, not {text!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    with stdout_as_stderr():
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise NoHandler(_why(error, module_name, folder)) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise NoHandler(f"{module.__file__} has no function {name!r}, which the handler {text} names")
    if inspect.iscoroutinefunction(found):
        where = f"{module.__file__}:{found.__code__.co_firstlineno}"
        raise NoHandler(
            f"{where}: {name} must not be `async def`: Lambda's runtime for Python calls it plainly"
        )
    handler: Handler = found
    return handler


def _why(error: Exception, module_name: str, folder: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name} in {folder}"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    frame = next(each for each in frames if not each.filename.startswith("<frozen importlib"))
    return f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {error}"
