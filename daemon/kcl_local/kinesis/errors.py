"""The refusals of the service. Knows only codes and messages; HTTP is the server's business."""

from __future__ import annotations


class ServiceError(Exception):
    """Raised when the service refuses or fails a call.

    Attributes:
        code: as on the wire, such as `ResourceNotFoundException`, or `kcl_local.faults.DROP` for no answer at all.
        message: what was wrong.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def invalid_argument(message: str) -> ServiceError:
    """An argument that is well-formed but makes no sense here."""
    return ServiceError("InvalidArgumentException", message)


def malformed(message: str) -> ServiceError:
    """An argument that is missing, of the wrong type or out of its range."""
    return ServiceError("ValidationException", message)


def not_found(message: str) -> ServiceError:
    """A stream or shard that does not exist, no longer exists or cannot be read yet."""
    return ServiceError("ResourceNotFoundException", message)


def in_use(message: str) -> ServiceError:
    """A stream that exists but is in no state for this call."""
    return ServiceError("ResourceInUseException", message)
