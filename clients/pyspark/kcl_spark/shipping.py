"""What Spark's workers and servers on other machines are sent: this package and the pipeline's module, by value.

They need a Python with pyspark and pyarrow, and nothing of ours. Spark pickles functions and classes by name otherwise, and
a name is of no use where the module is not.
"""

from __future__ import annotations

from importlib import import_module

from pyspark import cloudpickle

_PACKAGE = __name__.partition(".")[0]


def ship_by_value(pipeline: str) -> None:
    """Send both by value from now on.

    Args:
        pipeline: `module:function`; of a package all of it is sent that the pipeline uses.
    """
    for name in (_PACKAGE, pipeline.partition(":")[0].partition(".")[0]):
        cloudpickle.register_pickle_by_value(import_module(name))  # type: ignore[no-untyped-call]  # cloudpickle
