"""Endpoints and credentials of what goes over the daemon's own transport, found by the SDK as for all its own calls.

Owns asking it: region, `AWS_ENDPOINT_URL*`, FIPS, dual-stack, endpoints by account, profiles, roles and their renewal
are all its business. Knows no HTTP.
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from botocore import xform_name
from botocore.credentials import RefreshableCredentials
from botocore.httpsession import get_cert_path

from kcl_daemon.aws.calls import Lane
from kcl_daemon.errors import AccessDenied, Unavailable
from kcl_daemon.transport.values import Keys, Parameters, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials, ReadOnlyCredentials

    from kcl_daemon.aws.session import Asked

# What makes one request go elsewhere than another: the account and the stream in it.
_ADDRESSING: Final = ("StreamARN", "ConsumerARN")
_HANDLER_ID: Final = "kcl-daemon-where"
_asking: ContextVar[bool] = ContextVar("_asking", default=False)


class _Found(Exception):
    """Raised inside the SDK when it is about to sign a request that was only to be addressed."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.url)
        self.target = target


class AwsAccess:
    """The port `Access` of the transport.

    Args:
        asked: whose client and credentials are asked.
        lane: for what may block: addressing a request the first time, renewing credentials.
    """

    def __init__(self, asked: Asked, lane: Lane) -> None:
        self._client = asked.client
        self._credentials = asked.credentials
        self._ca_bundle = asked.ca_bundle
        self._lane = lane
        self._targets: dict[tuple[object, ...], Target] = {}
        self._keys: Keys | None = None
        self._frozen: ReadOnlyCredentials | None = None
        self._renewing = False
        self._context: ssl.SSLContext | None = None
        self._client.meta.events.register(f"before-sign.{asked.service}", _found, unique_id=_HANDLER_ID)

    async def target(self, operation: str, parameters: Parameters) -> Target:
        """As the port says; the SDK is asked once for each operation and ARN."""
        key = (operation, *map(parameters.get, _ADDRESSING))
        found = self._targets.get(key)
        if found is None:
            found = await self._lane.run(operation, lambda: self._ask(operation, parameters))
            self._targets[key] = found
        return found

    async def keys(self) -> Keys:
        """As the port says. While they are being renewed all calls but one go on with those that are still valid."""
        credentials, known = self._credentials, self._keys
        if known is not None and not isinstance(credentials, RefreshableCredentials):
            return known
        if known is None or _grows_old(credentials):
            if known is not None and self._renewing:
                return known
            self._renewing = True
            try:
                frozen = await self._lane.run("Credentials", credentials.get_frozen_credentials)
            finally:
                self._renewing = False
        else:
            # Looked at each time, as whoever shares them may have renewed them; nothing blocks, they are not old.
            frozen = credentials.get_frozen_credentials()
        if frozen is not self._frozen:
            self._keys, self._frozen = _keys(frozen), frozen
        assert self._keys is not None
        return self._keys

    def tls(self) -> ssl.SSLContext:
        """As the port says: `AWS_CA_BUNDLE` or the profile's, else the system's, else the SDK's own certificates."""
        if self._context is None:
            bundle = self._ca_bundle
            if bundle is None and not _system_trusts_any():
                bundle = str(get_cert_path(True))
            self._context = ssl.create_default_context(cafile=bundle)
        return self._context

    def _ask(self, operation: str, parameters: Parameters) -> Target:
        """Begin the call with the SDK and stop it before it is signed; blocks."""
        call = cast("Callable[..., object]", getattr(self._client, xform_name(operation)))
        token = _asking.set(True)
        try:
            call(**parameters)
        except _Found as found:
            return found.target
        finally:
            _asking.reset(token)
        raise Unavailable("the SDK did not say where the service is", operation=operation)


def _found(*, request: AWSRequest, signing_name: str, region_name: str, **_: object) -> None:
    if _asking.get():
        raise _Found(Target(str(request.url), region_name, signing_name))


def _grows_old(credentials: Credentials | RefreshableCredentials) -> bool:
    return isinstance(credentials, RefreshableCredentials) and credentials.refresh_needed()


def _keys(frozen: ReadOnlyCredentials) -> Keys:
    if not frozen.access_key or not frozen.secret_key:
        raise AccessDenied("the AWS credentials are empty", operation="Credentials")
    return Keys(frozen.access_key, frozen.secret_key, frozen.token or None)


def _system_trusts_any() -> bool:
    paths = cast("_Paths", ssl.get_default_verify_paths())
    folder = Path(paths.capath) if paths.capath else None
    return bool(paths.cafile) or (folder is not None and folder.is_dir() and any(folder.iterdir()))


class _Paths(Protocol):
    """What the stubs of `ssl` leave out: each may be missing."""

    cafile: str | None
    capath: str | None
