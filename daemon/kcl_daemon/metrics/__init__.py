"""What the daemon counts, times and shows, declared once for CloudWatch, Prometheus, OTLP and people.

`metric` has the types: a `Metric` is one figure, a `Family` are its series on Prometheus and OTLP, an `Operation` is KCL's
pair `Success` and `Time` with our histogram, and a `Shown` is read from the state, as a column or a series. `kcl` lists KCL's
metrics with its names, dimensions and levels, `own` what KCL lacks; few of those are on CloudWatch, which charges for each.
"""
