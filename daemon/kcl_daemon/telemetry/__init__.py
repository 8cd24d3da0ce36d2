"""What the daemon tells of itself: its log, its metrics, and what it does at one moment.

`shards` says what is shown of a shard, `helper_views` of the Spark engine and the lander, `snapshot` of a worker: values that
page, commands and exporters share. Durations in them are seconds before the snapshot. `recorder` takes what is counted,
`prometheus` keeps the totals and writes them and what a snapshot has, `otlp` and `cloudwatch` send them. No exporter raises,
waits or grows: a worker goes on whatever becomes of its figures.
"""
