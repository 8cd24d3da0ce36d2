"""What the daemon counts and times: one typed list, and what tells the figures to CloudWatch, Prometheus and OTLP."""
