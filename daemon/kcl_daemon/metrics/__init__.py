"""What the daemon counts and times, declared once for CloudWatch, Prometheus and OTLP.

`metric` has the types: a `Metric` is one figure, a `Family` are its series on Prometheus and OTLP, an `Operation` is KCL's
pair `Success` and `Time` with our histogram. `kcl` lists KCL's metrics with its names, dimensions and levels, `own` what
KCL lacks, and the figures of the Spark engine and of the lander. Those are not on CloudWatch, which charges for each; the few
that are have no dimension but `Operation`. Series from a snapshot end with their shard, query or engine. `catalog` puts all
together for the reference and the tests.
"""
