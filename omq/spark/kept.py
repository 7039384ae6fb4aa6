"""What a Python worker of Spark has loaded, kept out of garbage collection.

Spark uses a worker for one task after another, and for one plan after another. After each it has Python go
through every object there is for cycles that nobody needs. Those of PySpark and Arrow alone are a hundred
thousand, and they stay as long as the worker does: to look at them again takes longer than a small task.
"""

import gc
import sys

_DAEMON = "pyspark.daemon"
_modules = 0


def keep_what_is_loaded() -> None:
    """In a worker of Spark, have later garbage collections pass over the objects that are there now.

    For the moment when everything is imported. Does nothing where nothing was imported since the last time:
    what is kept must not grow with each task. And nothing in any other process, such as the driver.
    """
    global _modules
    if len(sys.modules) > _modules and _is_worker():
        _modules = len(sys.modules)
        gc.collect()  # what is garbage already goes
        gc.freeze()


def _is_worker() -> bool:
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == _DAEMON
