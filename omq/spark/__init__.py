"""omq as a data source of PySpark: `spark.dataSource.register(OmqDataSource)`, then `format("omq")`.

`access`, `local`, `remote`, `ranges` and `sinks` need neither Spark nor Arrow: with them blocks can be read,
and messages written, in bulk by any program.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omq.spark.session import local_session as local_session
    from omq.spark.source import OmqDataSource as OmqDataSource

__all__ = ["OmqDataSource", "local_session"]


def __getattr__(name: str) -> object:
    # PySpark is large, and those who only read blocks need not have it.
    if name == "OmqDataSource":
        from omq.spark.source import OmqDataSource

        return OmqDataSource
    if name == "local_session":
        from omq.spark.session import local_session

        return local_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
