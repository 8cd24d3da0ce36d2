"""The adapter for the Spark engine: started, supervised and stopped beside the worker. Speaks to it over pipes only."""
