"""The available columns, as in the Kafka source, and the check of a requested schema."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from omq.bulk.errors import BadOptions
from omq.spark.options import INCLUDE_HEADERS, ReadOptions

KEY, VALUE, TOPIC, PARTITION, OFFSET = "key", "value", "topic", "partition", "offset"
TIMESTAMP, TIMESTAMP_TYPE, HEADERS = "timestamp", "timestampType", "headers"

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_FIELDS = (
    StructField(KEY, BinaryType()),
    StructField(VALUE, BinaryType()),
    StructField(TOPIC, StringType()),
    StructField(PARTITION, IntegerType()),
    StructField(OFFSET, LongType()),
    StructField(TIMESTAMP, TimestampType()),
    StructField(TIMESTAMP_TYPE, IntegerType()),
)
_HEADERS = StructField(HEADERS, HEADERS_TYPE)


def usual_schema(options: ReadOptions) -> StructType:
    """Return all columns, as the Kafka source has them."""
    return StructType([*_FIELDS, *((_HEADERS,) if options.include_headers else ())])


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise BadOptions unless each column is an available one, with its type, and nullable where it is."""
    known = {field.name: field.dataType for field in (*_FIELDS, _HEADERS)}
    if len(set(schema.names)) < len(schema.names):
        raise BadOptions("A column can be there only once; copy it later.")
    for field in schema.fields:
        if field.name not in known:
            raise BadOptions(f"There is no column {field.name!r}; there are {', '.join(known)}.")
        if field.dataType != known[field.name]:
            wanted, given = known[field.name].simpleString(), field.dataType.simpleString()
            raise BadOptions(f"The column {field.name!r} is {wanted}, not {given}: cast it later.")
        if field.name in (KEY, HEADERS) and not field.nullable:
            raise BadOptions(f"The column {field.name!r} is null for some messages: omit NOT NULL.")
        if field.name == HEADERS and not options.include_headers:
            raise BadOptions(f"The column {HEADERS!r} needs the option {INCLUDE_HEADERS}.")
