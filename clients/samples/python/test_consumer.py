"""python3 -m unittest"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import unittest
from contextlib import redirect_stdout
from pathlib import Path

from consumer import Order, handle

HERE = Path(__file__).parent
RUN_CHILD = ("run-child", "--records", "records.txt", "--")


class Orders(unittest.TestCase):
    """The function alone, and as the daemon runs it."""

    def test_an_order_is_printed(self) -> None:
        with redirect_stdout(io.StringIO()) as said:
            handle(Order("order-1", "two apples", 2.5))
        self.assertEqual(said.getvalue(), "order-1: two apples for 2.50\n")

    def test_the_daemon_delivers_the_records_of_a_file(self) -> None:
        daemon = shutil.which("kcl-daemon") or str(Path(sys.executable).with_name("kcl-daemon"))
        child = (sys.executable, "-m", "kcl_client.run", "consumer:handle")
        done = subprocess.run(
            [daemon, *RUN_CHILD, *child], cwd=HERE, capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("delivered 3 of 3 records", done.stdout)
        self.assertNotIn("rejected", done.stdout)


if __name__ == "__main__":
    unittest.main()
