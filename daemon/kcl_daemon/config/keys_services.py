"""The properties of each AWS service: region, address and kind of endpoint.

Pure data, part of the table in `keys`. Java passes them to the builders of its clients (it has none for
Glue); another property under their prefixes is fatal there and refused here. Who asks the services is in `credentials`.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.key import Key
from kcl_daemon.config.kinds import choice, endpoint, name, truth

REGION: Final = name(r"[A-Za-z0-9-]{1,63}", "a region such as eu-west-1")

CLIENT_PREFIXES: Final = {
    "kinesisClient": ("kinesis", "Kinesis"),
    "dynamoDbClient": ("dynamodb", "DynamoDB"),
    "cloudWatchClient": ("cloudwatch", "CloudWatch"),
    "glueClient": ("glue", "Glue"),
}


def _service_keys(prefix: str, section: str, service: str) -> tuple[Key, ...]:
    target = f"endpoints.of_{section}"
    extension = section == "glue"
    return (
        Key(
            f"{prefix}.region",
            REGION,
            f"{target}.region_name",
            f"Region of {service} alone.",
            default="`regionName`",
            extension=extension,
        ),
        Key(
            f"{prefix}.fipsEnabled",
            truth(),
            f"{target}.fips",
            f"Whether to use the FIPS endpoint of {service}.",
            extension=extension,
        ),
        Key(
            f"{prefix}.dualstackEnabled",
            truth(),
            f"{target}.dualstack",
            f"Whether to use the endpoint of {service} for IPv4 and IPv6.",
            extension=extension,
        ),
    )


SERVICE_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "kinesisEndpoint",
        endpoint(),
        "endpoints.kinesis",
        "Address of Kinesis.",
        aliases=("kinesisClient.endpointOverride",),
        default="as the AWS SDK finds it",
    ),
    Key(
        "dynamoDBEndpoint",
        endpoint(),
        "endpoints.dynamodb",
        "Address of DynamoDB.",
        aliases=("dynamoDbClient.endpointOverride",),
        default="as the AWS SDK finds it",
    ),
    Key(
        "cloudWatchClient.endpointOverride",
        endpoint(),
        "endpoints.cloudwatch",
        "Address of CloudWatch.",
        default="as the AWS SDK finds it",
    ),
    Key(
        "glueClient.endpointOverride",
        endpoint(),
        "endpoints.glue",
        "Address of Glue, which is asked only with `schemaRegistry`.",
        default="as the AWS SDK finds it",
        extension=True,
    ),
    *(
        key
        for prefix, (section, service) in CLIENT_PREFIXES.items()
        for key in _service_keys(prefix, section, service)
    ),
    Key(
        "dynamoDbClient.endpointDiscoveryEnabled",
        truth(),
        "endpoints.of_dynamodb.endpoint_discovery",
        "Whether DynamoDB is asked for its endpoint.",
        default="as the AWS SDK finds it",
    ),
    Key(
        "dynamoDbClient.accountIdEndpointMode",
        choice({word.upper(): word for word in ("preferred", "disabled", "required")}),
        "endpoints.of_dynamodb.account_id_endpoint_mode",
        "Whether DynamoDB is asked at an endpoint of the account.",
        default="as the AWS SDK finds it",
    ),
)
