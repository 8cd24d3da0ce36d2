"""As whom the services are asked: the providers of the settings, as providers of botocore.

Owns the mapping of sources on the parts of botocore's chain, and roles assumed by name. Everything that a part does, such
as asking a task, an instance, SSO or a token for credentials and renewing them, is botocore's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import botocore.session
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
    create_credential_resolver,
)

from kcl_daemon.config.access_settings import Provider, Source

if TYPE_CHECKING:
    from botocore.credentials import Credentials

_RESOLVER: Final = "credential_provider"
_ROLE_METHOD: Final = "kcl-assume-role"
# The parts of botocore's chain by their names.
_PARTS: Final = {
    Source.ENVIRONMENT: ("env",),
    Source.CONTAINER: ("container-role",),
    Source.INSTANCE: ("iam-role",),
    Source.WEB_IDENTITY: ("assume-role-with-web-identity",),
    Source.PROFILE: (
        "assume-role",
        "assume-role-with-web-identity",
        "sso",
        "shared-credentials-file",
        "login",
        "custom-process",
        "config-file",
    ),
}


def session_as(providers: tuple[Provider, ...], region_name: str) -> botocore.session.Session:
    """A session that asks as these providers say, the first that has credentials.

    Args:
        providers: empty: botocore's own chain.
        region_name: where roles are assumed that name no region.
    """
    session = botocore.session.get_session()
    if providers and providers != (Provider(),):
        chain = [part for provider in providers for part in _chain(provider, region_name)]
        session.register_component(_RESOLVER, CredentialResolver(providers=chain))
    return session


def _chain(provider: Provider, region_name: str) -> list[CredentialProvider]:
    if provider.source is Source.ROLE:
        return [_RoleProvider(provider, region_name)]
    session = botocore.session.get_session()
    if provider.source is Source.PROFILE:
        # Told so, botocore leaves the environment's keys and tokens aside.
        name = provider.profile_name or session.get_config_variable("profile") or "default"
        session.set_config_variable("profile", name)
    resolver = create_credential_resolver(session, region_name=region_name)
    # Any: the stubs do not know that resolvers show their parts; botocore's documentation does.
    parts = cast("list[CredentialProvider]", cast("Any", resolver).providers)
    wanted = _PARTS.get(provider.source)
    return parts if wanted is None else [part for part in parts if part.METHOD in wanted]


class _RoleProvider(CredentialProvider):
    """Assumes a role with what botocore's own chain finds (KCL: KclStsAssumeRoleCredentialsProvider)."""

    METHOD = _ROLE_METHOD
    CANONICAL_NAME = None

    def __init__(self, role: Provider, region_name: str) -> None:
        super().__init__()
        self._role = role
        self._region_name = role.region_name or region_name

    def load(self) -> Credentials | None:
        """Credentials that assume the role when they are first asked; None where there is nobody to assume it."""
        session = botocore.session.get_session()
        source = session.get_credentials()
        if source is None:
            return None
        more = {"RoleSessionName": self._role.session_name}
        if self._role.external_id is not None:
            more["ExternalId"] = self._role.external_id

        def client(service: str, **keys: Any) -> Any:
            return session.create_client(
                service, region_name=self._region_name, endpoint_url=self._role.endpoint_url, **keys
            )

        fetcher = AssumeRoleCredentialFetcher(client, source, self._role.role_arn, extra_args=more)
        return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=_ROLE_METHOD)
