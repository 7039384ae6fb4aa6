# cython: language_level=3, embedsignature=False, binding=False
"""The compiled work for single messages: the twin of the plain functions in `storage/omq_storage/plain.py`, of
`omq/protocol/dmp/reader.py` and `writer.py`, of `omq/protocol/amqp/producer.py`, of `frames.py` and `lines.py` in
`omq/protocol/omq`, and of `runs.py` and `delivery.py` in `omq/protocol/amqp_0_9`.

It processes the common input and leaves everything else to the plain code: a function returns None, or a parser
stops, where it finds anything else.  So the errors about invalid octets are in one place, the plain code, with
one text for each.

A *span* is the position of the body of one message in received octets.  Spans are found and checked first; the
bodies are copied when the sum of their lengths is known, into memory of exactly that size.  Every length that
is read from octets is compared, in 64 bits, with the number of remaining octets before it is used.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memchr, memcmp, memcpy

from omq_storage.crc import crc32c

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    /* Whether an octet is there that ends a bare atom, or a # or |. The distance to the nearest of them, and
       not a comparison with each, is what compilers turn into operations on many octets at a time. */
    static int omq_has_mark(const uint8_t *at, size_t size) {
        static const uint8_t marks[9] = {'\\t', '\\f', '\\r', '"', '(', ')', ';', '#', '|'};
        uint8_t found = 0;
        for (size_t i = 0; i < size; i++) {
            uint8_t nearest = (uint8_t)(at[i] ^ ' ');
            for (int j = 0; j < 9; j++) {
                uint8_t distance = (uint8_t)(at[i] ^ marks[j]);
                nearest = distance < nearest ? distance : nearest;
            }
            found |= nearest == 0 ? 1 : 0;
        }
        return found;
    }
    """
    bint has_mark "omq_has_mark"(const uint8_t* at, size_t size) noexcept nogil


cdef enum:
    HEADER = 17  # of a frame
    COUNTED = 13  # its octets that the length counts
    MESSAGE = 2
    NUMBER = 4
    NAMES = 4  # octets of an envelope's head without names and properties

    TABLE = 0x2000  # the flag of the property headers
    UNKNOWN = 0x0003  # flags that stand for no property
    OCTETS = 0x1800  # the flags of properties of one octet
    LONG = 0x0040  # the flag of the property timestamp
    MEANINGFUL = 3  # the options mandatory and immediate

cdef int64_t FRAMES_LIMIT = 1 << 30
cdef int64_t LONGEST_SIZE = 0xFFFFFFFF

# A line longer than this is read in steps if each octet must be examined.
cdef int64_t LONG_LINE = 1 << 17

# Release the GIL only for work that takes longer than getting it back from a busy Python thread.
cdef int64_t LARGE = 1 << 20

cdef bytes PLAIN_HEAD = b"\0\0\0\0"
cdef bytes HEAD_WITH_TABLE = b"\0\0\x20\0\0\0\0\0"


cdef struct Span:
    const uint8_t* at
    uint32_t length  # of the body
    uint32_t written  # its octets in the input: more than `length` if some are escaped
    uint32_t head  # octets of the head that ends NUMBER octets before an envelope's body
    uint32_t options


cdef int _octet  # where tables are filled

include "native/numbers.pxi"
include "native/frames.pxi"
include "native/blocks.pxi"
include "native/heads.pxi"
include "native/envelopes.pxi"
include "native/messages.pxi"
include "native/stores.pxi"
include "native/routes.pxi"
include "native/commits.pxi"
include "native/spans.pxi"
include "native/lines.pxi"
include "native/sexps.pxi"
include "native/amqp.pxi"
include "native/transfers.pxi"
