"""Exclude the objects of imported modules from garbage collection in Spark's Python workers.

Spark runs many tasks and plans in one worker, and after each it runs a full garbage collection. PySpark and
Arrow alone have a hundred thousand objects that live as long as the worker: scanning them again takes longer
than a small task.
"""

import gc
import sys

_DAEMON = "pyspark.daemon"
_modules = 0


def freeze_loaded_modules() -> None:
    """Freeze all present objects of a Spark worker, so that later garbage collections skip them.

    Call this when everything is imported. It does nothing if no module was imported since the last call, so
    that the number of frozen objects does not grow with each task, and nothing in other processes, such as
    the driver.
    """
    global _modules
    if len(sys.modules) > _modules and _is_worker():
        _modules = len(sys.modules)
        gc.collect()  # free the present garbage first
        gc.freeze()


def _is_worker() -> bool:
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == _DAEMON
