"""What a snapshot says of the Spark engine, as samples. Pure: a view in, samples out, family by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kcl_daemon.metrics import spark
from kcl_daemon.metrics.metric import Family, Labels
from kcl_daemon.observe.spark_view import SparkQueryView, SparkShardView, SparkView


def spark_samples(view: SparkView) -> Iterator[tuple[Family, list[tuple[Labels, float]]]]:
    """All families of the engine; one sample for each query or shard that has a value."""
    for family, of_query in _OF_QUERIES:
        values = ((each.name, of_query(each)) for each in view.queries)
        yield family, [((("query", name),), float(value)) for name, value in values if value is not None]
    for family, of_shard in _OF_SHARDS:
        yield family, [((("shard_id", each.shard_id),), float(of_shard(each))) for each in view.shards]


_OF_QUERIES: Final[tuple[tuple[Family, Callable[[SparkQueryView], float | None]], ...]] = (
    (spark.QUERY_RUNNING, lambda query: query.running),
    (spark.QUERY_FAILURES, lambda query: query.failures),
    (spark.QUERY_BATCH, lambda query: query.batch),
    (spark.QUERY_SINCE_COMMIT, lambda query: query.since_commit_s),
    (spark.QUERY_INPUT, lambda query: query.input_rows_per_s),
    (spark.QUERY_PROCESSED, lambda query: query.processed_rows_per_s),
    (spark.QUERY_DURATION, lambda query: query.batch_s),
    (spark.QUERY_STATE, lambda query: query.state_rows),
    (spark.QUERY_LATE, lambda query: query.late_rows),
)
_OF_SHARDS: Final[tuple[tuple[Family, Callable[[SparkShardView], float]], ...]] = (
    (spark.SHARD_ROWS, lambda shard: shard.rows),
    (spark.SHARD_BYTES, lambda shard: shard.data_bytes),
    (spark.SHARD_COMMITTED, lambda shard: shard.committed),
    (spark.SHARD_REDELIVERED, lambda shard: shard.redelivered),
    (spark.SHARD_WAITING, lambda shard: shard.waiting),
    (spark.SHARD_LAG, lambda shard: shard.lag_s),
    (spark.SHARD_SPOOLED, lambda shard: shard.spooled_bytes),
)
