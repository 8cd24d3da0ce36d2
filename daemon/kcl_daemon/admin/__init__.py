"""The status page, the probes and `/metrics` over HTTP. It only shows snapshots."""
