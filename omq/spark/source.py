"""The data source that Spark calls `omq`.

Spark creates it in several processes for each query, and each process imports the modules again. So this
module imports each reader and writer only where it needs it.
"""

from collections.abc import MutableMapping

from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from omq.bulk.errors import BadOptions
from omq.spark.frozen_modules import freeze_loaded_modules
from omq.spark.options import read_options, write_options
from omq.spark.schema import usual_schema


class OmqDataSource(DataSource):
    """Topics of omq for Spark, similar to its Kafka source: `spark.dataSource.register(OmqDataSource)`.

    Spark wraps errors of `omq.bulk.errors` in its own exceptions, which contain our sentences.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        freeze_loaded_modules()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format. On a driver, check first that the workers can import omq: Spark asks
        for the name when a program registers the data source. Raises WrongPython.
        """
        # Spark's workers ask for the name too, and have no context.
        context = SparkContext._active_spark_context
        if context is not None:
            from omq.spark.workers import check_workers

            check_workers(context)
        return "omq"

    def schema(self) -> StructType:
        # A stream calls this too; its reader checks the options again.
        return usual_schema(read_options(self._given, stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        from omq.spark.batch import BatchReader

        reader = BatchReader(read_options(self._given, stream=False), schema)
        freeze_loaded_modules()
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from omq.spark.stream import StreamReader

        return StreamReader(read_options(self._given, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from omq.spark.writing import BatchWriter

        if overwrite:
            raise BadOptions("A topic can only be appended to: use mode('append').")
        writer = BatchWriter(write_options(self._given), schema)
        freeze_loaded_modules()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from omq.spark.writing import StreamWriter

        # The complete mode appends its whole result each time, as with Kafka.
        writer = StreamWriter(write_options(self._given), schema)
        freeze_loaded_modules()
        return writer
