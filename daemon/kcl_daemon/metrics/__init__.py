"""What the daemon counts, times and shows, declared once for CloudWatch, Prometheus, OTLP and people.

A `Metric` is one figure, a `Family` its series on Prometheus and OTLP, an `Operation` KCL's pair `Success` and `Time` with
our histogram, and a `Shown` is read from the state. `kcl` lists KCL's metrics, `own` what KCL lacks; few of those are on
CloudWatch, which charges for each.
"""
