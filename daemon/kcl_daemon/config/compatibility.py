"""Where a value is honoured here that the Java daemon leaves aside.

Java's properties are put into its objects only where they differ from 0 and `false`, unless they are boxed; so those two
cannot be configured for some properties (KCL: ConfigurationSettableUtils). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcl_daemon.config.notices import Notice

# What Java uses where the file says 0 or false. Those for which it makes no difference, or where 0 is refused here, are
# not in the list.
_JAVA_USES: Final = {
    "cleanupLeasesUponShardCompletion": "true",
    "fanoutConfig.retryBackoffMillis": "1000",
    "schedulerInitializationBackoffTimeMillis": "1000",
    "taskBackoffTimeMillis": "500",
}


def honoured(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Notice]:
    """A note for each value that Java would have left aside.

    Args:
        values: by key name.
        lines: where each key stands.
    """
    for name, java_uses in _JAVA_USES.items():
        value = values.get(name)
        if value is False or value == 0:
            facts = {"value": value, "java_uses": java_uses}
            yield Notice("property_honoured_unlike_java", name, lines[name], facts, level="info")
