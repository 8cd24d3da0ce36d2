"""Starts, supervises and stops the Spark engine, over pipes only."""
