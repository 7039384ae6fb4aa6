"""The types of numbers in AMQP 1.0 and in field tables, except those of times, which have other units."""

from omq.protocol.amqp.fields import NumberType as FieldNumber
from omq.protocol.amqp_1_0.types import NumberType

OF_FIELDS = {
    FieldNumber.INT8: NumberType.BYTE,
    FieldNumber.UINT8: NumberType.UBYTE,
    FieldNumber.INT16: NumberType.SHORT,
    FieldNumber.INT16_OF_SPECIFICATION: NumberType.SHORT,
    FieldNumber.UINT16: NumberType.USHORT,
    FieldNumber.INT32: NumberType.INT,
    FieldNumber.UINT32: NumberType.UINT,
    FieldNumber.INT64: NumberType.LONG,
    FieldNumber.INT64_OF_SPECIFICATION: NumberType.LONG,
    FieldNumber.FLOAT32: NumberType.FLOAT,
    FieldNumber.FLOAT64: NumberType.DOUBLE,
}
"""The type in AMQP 1.0 for each type in field tables."""

_ONLY_READ = FieldNumber.INT16_OF_SPECIFICATION, FieldNumber.INT64_OF_SPECIFICATION

FOR_FIELDS = {number: field for field, number in OF_FIELDS.items() if field not in _ONLY_READ}
"""The type in field tables for each type in AMQP 1.0 that has one there: `ulong` has none."""
