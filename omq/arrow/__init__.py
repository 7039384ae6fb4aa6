"""Stored messages as Arrow tables and record batches, for pyarrow, pandas, polars, DuckDB and others:
`omq.arrow.read_table("omq://host:port", "prices")`.

It needs the extra `arrow` of the distribution, which is PyArrow. docs/CLIENTS.md describes it. Spark's data
source converts blocks with the same code.
"""

try:
    import pyarrow  # noqa: F401 - only whether it is there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("omq.arrow needs PyArrow: pip install '.[arrow]' in the checkout") from error

from omq.arrow.tables import open_reader, read_table
from omq.bulk.errors import BadOptions, DataLoss, OmqError, ServerRefused, UnknownTopic, Unreachable

__all__ = [
    "BadOptions",
    "DataLoss",
    "OmqError",
    "ServerRefused",
    "UnknownTopic",
    "Unreachable",
    "open_reader",
    "read_table",
]
