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
            f"Region of {service} only.",
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
            f"Whether to use the dual-stack endpoint (IPv4 and IPv6) of {service}.",
            extension=extension,
        ),
    )


SERVICE_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "kinesisEndpoint",
        endpoint(),
        "endpoints.kinesis",
        "Endpoint of Kinesis.",
        aliases=("kinesisClient.endpointOverride",),
        default="from the AWS SDK",
    ),
    Key(
        "dynamoDBEndpoint",
        endpoint(),
        "endpoints.dynamodb",
        "Endpoint of DynamoDB.",
        aliases=("dynamoDbClient.endpointOverride",),
        default="from the AWS SDK",
    ),
    Key(
        "cloudWatchClient.endpointOverride",
        endpoint(),
        "endpoints.cloudwatch",
        "Endpoint of CloudWatch.",
        default="from the AWS SDK",
    ),
    Key(
        "glueClient.endpointOverride",
        endpoint(),
        "endpoints.glue",
        "Endpoint of Glue; used only with `schemaRegistry`.",
        default="from the AWS SDK",
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
        "Whether endpoint discovery of DynamoDB is used.",
        default="from the AWS SDK",
    ),
    Key(
        "dynamoDbClient.accountIdEndpointMode",
        choice({word.upper(): word for word in ("preferred", "disabled", "required")}),
        "endpoints.of_dynamodb.account_id_endpoint_mode",
        "Whether the account-based endpoint of DynamoDB is used.",
        default="from the AWS SDK",
    ),
)
