"""The workers of a run, their children and streams, put together into one world."""
