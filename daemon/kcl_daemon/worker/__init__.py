"""One worker's life: start, main task group, shutdown."""
