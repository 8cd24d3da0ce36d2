"""`python -m tests.benchmarks`: the table of docs/cost.md, counted anew. Takes some minutes."""

from __future__ import annotations

import argparse
import sys

from tests.benchmarks.fleet import idle_requests
from tests.benchmarks.java import requests_per_minute
from tests.benchmarks.tables import requests_table

SIZES = tuple((shards, workers) for workers in (1, 10) for shards in (1, 10, 100, 1_000))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Count the DynamoDB requests of idle fleets in virtual time."
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="virtual minutes to count (10)")
    minutes: float = parser.parse_args().minutes
    rows = [
        (
            shards,
            workers,
            idle_requests(shards, workers, minutes=minutes),
            requests_per_minute(shards, workers),
        )
        for shards, workers in SIZES
    ]
    sys.stdout.write(requests_table(rows) + "\n")


if __name__ == "__main__":
    main()
