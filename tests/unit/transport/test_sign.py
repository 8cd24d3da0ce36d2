"""Our signatures are the SDK's, whatever is signed."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch

from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.transport.caller import CONTENT_TYPE, Signer
from kcl_daemon.transport.kinesis import KINESIS_API
from kcl_daemon.transport.pool import AccessKeys, ServiceEndpoint

PREFIX = "Kinesis_20131202."
ASCII = st.characters(min_codepoint=33, max_codepoint=126)
HOSTS = st.sampled_from(
    [
        "https://kinesis.eu-west-1.amazonaws.com",
        "https://123456789012.data-kinesis.us-east-1.amazonaws.com/",
        "https://kinesis-fips.us-gov-west-1.amazonaws.com:443/",
        "http://127.0.0.1:4567",
        "http://localhost:80/",
        "https://proxy.example:8443/kinesis/a b~c/",
    ]
)


def by_the_sdk(target: ServiceEndpoint, operation: str, body: bytes, keys: AccessKeys, epoch_s: float) -> str:
    """The SDK's Authorization header."""
    request = AWSRequest(
        "POST",
        target.url,
        data=body,
        headers={"Content-Type": CONTENT_TYPE, "X-Amz-Target": f"{PREFIX}{operation}"},
    )
    signer = auth.SigV4Auth(
        Credentials(keys.access_key, keys.secret_key, keys.token), target.service, target.region
    )
    moment = datetime.fromtimestamp(epoch_s, tz=UTC).replace(tzinfo=None)
    with patch.object(auth, "get_current_datetime", lambda: moment):
        signer.add_auth(request)
    return str(request.headers["Authorization"])


def headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


@given(
    url=HOSTS,
    region=st.sampled_from(["us-east-1", "eu-west-1", "cn-north-1"]),
    service=st.sampled_from(["kinesis", "dynamodb"]),
    operation=st.sampled_from(["GetRecords", "GetShardIterator", "SubscribeToShard"]),
    body=st.binary(max_size=200),
    secret=st.text(ASCII, min_size=1, max_size=40),
    token=st.none() | st.text(ASCII, min_size=1, max_size=100),
    times_s=st.lists(st.integers(1_500_000_000, 2_500_000_000), min_size=1, max_size=3),
)
def test_a_signature_is_the_sdks(
    *,
    url: str,
    region: str,
    service: str,
    operation: str,
    body: bytes,
    secret: str,
    token: str | None,
    times_s: list[int],
) -> None:
    target, keys = ServiceEndpoint(url, region, service), AccessKeys("AKID", secret, token)
    signer = Signer(target, KINESIS_API)
    for epoch_s in times_s:  # one signer over several days
        reported = headers(signer.head(operation, body, keys, epoch_s=epoch_s))
        assert reported["Authorization"] == by_the_sdk(target, operation, body, keys, epoch_s)
        assert reported["Content-Length"] == str(len(body))
        assert reported.get("X-Amz-Security-Token") == token


def test_other_keys_sign_at_once() -> None:
    target = ServiceEndpoint("https://kinesis.eu-west-1.amazonaws.com", "eu-west-1", "kinesis")
    signer = Signer(target, KINESIS_API)
    for keys in (AccessKeys("A", "one"), AccessKeys("B", "two", "token"), AccessKeys("A", "one")):
        reported = headers(signer.head("GetRecords", b"{}", keys, epoch_s=1_795_190_400))
        assert reported["Authorization"] == by_the_sdk(target, "GetRecords", b"{}", keys, 1_795_190_400)


def test_secrets_are_in_no_text() -> None:
    assert "hidden" not in repr(AccessKeys("A", "hidden", "hidden"))
