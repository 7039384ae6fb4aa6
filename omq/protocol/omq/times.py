"""OCaml's `Time.t` of the Ack command: microseconds since the epoch, from and to the sexps Core writes.

Source: docs/PROTOCOL.md, "Ack". Core's Time is a floating-point number of seconds, and so it is here: a time
of the year 9999 has lost its microseconds. A time without a zone is read as UTC.
"""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo

from omq.protocol.omq.converters import ConversionError, integer
from omq.protocol.omq.sexp import Sexp

_DAY = 86_400
_EPOCH = datetime(1970, 1, 1)
_FIRST_DAY = (date(1, 1, 1) - date(1970, 1, 1)).days
_LAST_DAY = (date(9999, 12, 31) - date(1970, 1, 1)).days

_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")

# Core's Month.of_string reads these three spellings of each, and no others such as `jAN`.
_MONTH_NUMBERS = {
    spelling: number
    for number, name in enumerate(_MONTHS, 1)
    for spelling in (name, name.lower(), name.upper())
}

_MOST_SLASHES = 3
"""The greatest number of slashes in the name of a zone, such as `posix/America/Indiana/Knox`."""

_LONG = 4096
"""A longer time has a long fraction."""
_LONGEST_ZONE = 64
"""The most octets after a fraction."""
_PRECISION = 30
"""The greatest number of digits of a fraction that count: more than a float has."""

# Core's short names; every other name is a file of the time zone database.
_ZONES = {
    "utc": "UTC", "gmt": "GMT", "chi": "America/Chicago", "nyc": "America/New_York", "hkg": "Asia/Hong_Kong",
    "lon": "Europe/London", "ldn": "Europe/London", "tyo": "Asia/Tokyo",
}  # fmt: skip


def _refuse() -> ConversionError:
    return ConversionError("must be a time such as (2013-08-07 10:01:02.123456Z)")


def time_of_sexp(sexp: Sexp) -> int:
    """Return microseconds since the epoch of `(date time)`, `(date time zone)`, or one atom with a space or a
    `T`.

    Raises ConversionError for anything else, an unknown zone included.
    """
    match sexp:
        case [bytes() as day, bytes() as clock, bytes() as zone]:
            return _in_zone(day, _shorter(clock), zone)
        case [bytes() as day, bytes() as clock]:
            return _of_text(day + b" " + _shorter(clock))
        case bytes():
            return _of_text(_shorter(sexp))
        case _:
            raise _refuse()


def _shorter(text: bytes) -> bytes:
    """Drop most of a long fraction. A line may have a million digits and underscores: each call here takes at
    most 0.3 ns an octet, and the expressions below take more than a nanosecond.
    """
    point = text.find(b".") + 1
    if len(text) <= _LONG or not 0 < point <= len(text) - _LONGEST_ZONE:
        return text
    within = text[point:-_LONGEST_ZONE]
    digits = within.translate(None, b"_") if b"_" in within else within
    if digits and not digits.isdigit():
        raise _refuse()
    return text[:point] + digits[:_PRECISION] + text[-_LONGEST_ZONE:]


def _of_text(text: bytes) -> int:
    match text.split(b" ", 4):
        case [day, month, year, clock]:
            return _with_offset(b" ".join((day, month, year)), clock)
        case [day, clock, zone]:
            return _in_zone(day, clock, zone)
        case [day, clock]:
            return _with_offset(day, clock)
        case [_] if b"T" in text:
            day, _, clock = text.rpartition(b"T")
            return _with_offset(day, clock)
        case _:
            raise _refuse()


def _with_offset(day: bytes, clock: bytes) -> int:
    """Read a day and a time of day that may end in `Z` or an offset such as `+05:30`, `+0530` or `-5`, as
    microseconds since the epoch.
    """
    offset = 0.0
    if clock.endswith(b"Z"):
        clock = clock[:-1]
    elif b"+" in clock:
        clock, _, behind = clock.partition(b"+")
        offset = _seconds_of_offset(behind)
    elif b"-" in clock:
        clock, _, behind = clock.partition(b"-")
        offset = -_seconds_of_offset(behind)
    return _microseconds(_days(day) * _DAY + _seconds(clock) - offset)


def _seconds_of_offset(offset: bytes) -> float:
    if re.fullmatch(rb"[0-9]{1,2}", offset):
        offset += b":00"
    elif re.fullmatch(rb"[0-9]{3,4}", offset):
        offset = offset[:-2] + b":" + offset[-2:]
    return _seconds(offset)


def _in_zone(day: bytes, clock: bytes, zone: bytes) -> int:
    days, seconds = _days(day), _seconds(clock)
    # Python's calendar begins with year 1, Core's with year 0: before and after, the nearest known offset
    # counts.
    nearest = _EPOCH + timedelta(days=min(max(days, _FIRST_DAY + 1), _LAST_DAY - 1), seconds=seconds)
    offset = _zone(zone).utcoffset(nearest)
    if offset is None:
        raise _refuse()
    return _microseconds(days * _DAY + seconds - offset.total_seconds())


def _zone(name: bytes) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # few servers need it: 0.3 MiB of memory

    # ZoneInfo refuses absolute names and names with `..`, which would leave the time zone database; and a
    # name may be that of a directory, or of a file that describes no zone.
    if name.count(b"/") > _MOST_SLASHES:
        raise ConversionError("must be a time in a known zone")  # ZoneInfo looks at each part within another
    try:
        text = name.decode("ascii")
        return ZoneInfo(_ZONES.get(text, text))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConversionError("must be a time in a known zone") from error


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


# -- the time of day ----------------------------------------------------------------------------------------

_CLOCK = re.compile(rb"(?:([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9_]*+))?)?|([0-9]{2})([0-9]{2}))")


def _seconds(clock: bytes) -> float:
    """Return seconds since midnight of `10:01`, `1001`, `10:01:02` or `10:01:02.123456`; 24:00 is the day's
    end.
    """
    match = _CLOCK.fullmatch(clock)
    if match is None:
        raise _refuse()
    hours, minutes, seconds = int(match[1] or match[5]), int(match[2] or match[6]), int(match[3] or 0)
    fraction = float(b"0." + (match[4] or b"0").replace(b"_", b"")[:_PRECISION] + b"0")
    if hours > 24 or minutes > 59 or seconds > 60 or (hours == 24 and (minutes or seconds or fraction)):
        raise _refuse()
    if seconds == 60:  # a leap second has no fractions of its own
        fraction = 0.0
    return hours * 3600 + minutes * 60 + seconds + fraction


# -- the date -----------------------------------------------------------------------------------------------

_NUMBERED = re.compile(rb"([0-9]{4})-([0-9]{2})-([0-9]{2})|([0-9]{4})([0-9]{2})([0-9]{2})")
_DAY_FIRST = re.compile(rb"([0-9]{2})( ?)([A-Za-z]{3})\2([0-9]{4})")
_YEAR_FIRST = re.compile(rb"([0-9]{4}) ([A-Za-z]{3}) ([0-9]{2})")


def _days(text: bytes) -> int:
    """Return days since the epoch of `2013-08-07`, `20130807`, `2013/08/07`, `08/07/2013`, `07 Aug
    2013`, ...
    """
    if b"/" in text:
        return _days_with_slashes(text)
    if match := _NUMBERED.fullmatch(text):
        return _days_of(*(int(part) for part in match.groups() if part is not None))
    if match := _DAY_FIRST.fullmatch(text):
        return _days_of(int(match[4]), _month(match[3]), int(match[1]))
    if match := _YEAR_FIRST.fullmatch(text):
        return _days_of(int(match[1]), _month(match[2]), int(match[3]))
    raise _refuse()


def _days_with_slashes(text: bytes) -> int:
    """Read year, month, day if the first part has four octets, else month, day, year. Years may be short."""
    parts = text.split(b"/", 3)
    if len(parts) != 3:
        raise _refuse()
    year, month, day = (
        integer(part, 63) for part in (parts if len(parts[0]) == 4 else parts[2:] + parts[:2])
    )
    if year < 100:
        year += 2000 if year < 75 else 1900
    return _days_of(year, month, day)


def _month(name: bytes) -> int:
    number = _MONTH_NUMBERS.get(name)
    if number is None:
        raise _refuse()
    return number


def _days_of(year: int, month: int, day: int) -> int:
    # Compared here, because `date` raises another error for numbers that do not fit into 32 bits.
    if not (0 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31):
        raise _refuse()
    # The calendar repeats every 400 years, which are 146,097 days; year 0 is a leap year as 400 is.
    try:
        first = date(year or 400, month, day)
    except ValueError as error:
        raise _refuse() from error
    return first.toordinal() - date(1970, 1, 1).toordinal() - (0 if year else 146_097)


# -- writing ------------------------------------------------------------------------------------------------


def sexp_of_time(microseconds: int) -> Sexp:
    """Return `(2013-08-07 10:01:02.123456Z)`. Raise OverflowError outside the years 1 to 9999."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    day, _, clock = moment.replace(tzinfo=None).isoformat(" ", "microseconds").partition(" ")
    return [day.encode(), clock.encode() + b"Z"]
