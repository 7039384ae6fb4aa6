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

_OCTETS = (KEY, VALUE)
"""The columns that a schema may also have as strings: Spark then need not copy the octets of each row into an
array of Java first, and cast them.
"""


def usual_schema(options: ReadOptions) -> StructType:
    """Return all columns, as the Kafka source has them."""
    return StructType([*_FIELDS, *((_HEADERS,) if options.include_headers else ())])


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise BadOptions unless each column is an available one, with a type of it, and nullable where it
    is.
    """
    known = {field.name: [field.dataType] for field in (*_FIELDS, _HEADERS)}
    for name in _OCTETS:
        known[name].append(StringType())
    if len(set(schema.names)) < len(schema.names):
        raise BadOptions("A column can be there only once; copy it later.")
    for field in schema.fields:
        if field.name not in known:
            raise BadOptions(f"There is no column {field.name!r}; there are {', '.join(known)}.")
        if field.dataType not in known[field.name]:
            wanted = " or ".join(type_.simpleString() for type_ in known[field.name])
            given = field.dataType.simpleString()
            raise BadOptions(f"The column {field.name!r} is {wanted}, not {given}: cast it later.")
        if field.name in (KEY, HEADERS) and not field.nullable:
            raise BadOptions(f"The column {field.name!r} is null for some messages: omit NOT NULL.")
        if field.name == HEADERS and not options.include_headers:
            raise BadOptions(f"The column {HEADERS!r} needs the option {INCLUDE_HEADERS}.")
