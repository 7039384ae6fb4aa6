"""omq as a data source of PySpark: `spark.dataSource.register(OmqDataSource)`, then `format("omq")`.

`omq.bulk` needs neither Spark nor Arrow: any program can use it to read blocks and publish messages in
bulk.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omq.spark.progress import behind as behind
    from omq.spark.session import local_session as local_session
    from omq.spark.source import OmqDataSource as OmqDataSource

__all__ = ["OmqDataSource", "behind", "local_session"]


def __getattr__(name: str) -> object:
    # Import late: PySpark is large, and programs that only read blocks do not need it.
    if name == "OmqDataSource":
        from omq.spark.source import OmqDataSource

        return OmqDataSource
    if name == "behind":
        from omq.spark.progress import behind

        return behind
    if name == "local_session":
        from omq.spark.session import local_session

        return local_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
