"""The status page, the probes and `/metrics` over HTTP."""
