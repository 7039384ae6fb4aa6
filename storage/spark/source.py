"""The data source itself: what Spark calls `omq`."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from storage.spark.batch import BatchReader
from storage.spark.options import read_options
from storage.spark.reading import usual_schema


class OmqDataSource(DataSource):
    """Topics of omq for Spark, in the manner of its Kafka source: `spark.dataSource.register(OmqDataSource)`.

    Errors of `storage.spark.errors` come out of Spark as its own, with their sentences in them.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "omq"

    def schema(self) -> StructType:
        # A stream gets its schema here too, and its options are looked at again by its reader.
        return usual_schema(read_options(self._given, stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self._given, stream=False), schema)
