"""Times as the Ack command carries them."""

import calendar
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omq.protocol.omq.commands import parse
from omq.protocol.omq.converters import ConversionError
from omq.protocol.omq.sexp import Sexp, read
from omq.protocol.omq.times import sexp_of_time, time_of_sexp
from omq.protocol.omq.types import Ack

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAY = 86_400_000_000
AUGUST = 1_375_869_662_123_456  # 2013-08-07 10:01:02.123456 UTC
SECOND = 1_375_869_662_000_000

# A time is a floating-point number of seconds, so microseconds are exact only near the epoch: up to 2106.
EXACT = 2**32 * 1_000_000


def ack(time: str) -> int:
    command = parse(b"(Ack %s)" % time.encode())
    assert isinstance(command, Ack)
    return command.time


@pytest.mark.parametrize("number", range(1, 13))
def test_every_month_by_its_name(number: int) -> None:
    name = calendar.month_abbr[number]
    wanted = int(datetime(2013, number, 7, tzinfo=UTC).timestamp()) * 1_000_000
    for month in (name, name.lower(), name.upper()):
        assert ack(f"(07{month}2013 00:00:00)") == ack(f'"2013 {month} 07 00:00:00"') == wanted


@pytest.mark.parametrize(
    ("time", "microseconds"),
    [
        ("(2013-08-07 10:01:02.123456)", AUGUST),
        ("(2013-08-07 10:01:02.123456Z)", AUGUST),
        ("(2013-08-07 10:01:02.123456 UTC)", AUGUST),
        ("(2013-08-07 06:01:02.123456-04:00)", AUGUST),
        ("(2013-08-07 06:01:02.123456 America/New_York)", AUGUST),
        ("(2013-08-07 06:01:02.123456 nyc)", AUGUST),
        ("(2013-08-07 11:01:02 ldn)", SECOND),
        ("(2013-01-07 10:01:02 lon)", 1_357_552_862_000_000),
        ("(2013-08-07 19:01:02 tyo)", SECOND),
        ("(2013-08-07 15:31:02+0530)", SECOND),
        ("(2013-08-07 15:31:02+530)", SECOND),
        ("(2013-08-07 15:01:02+5)", SECOND),
        ('"2013-08-07 10:01:02.123456"', AUGUST),
        ('"2013-08-07 06:01:02.123456 nyc"', AUGUST),
        ("2013-08-07T10:01:02.123456Z", AUGUST),
        pytest.param(
            "2013-08-07T10:01:02." + "_" * 9_000 + "1_2_3456" + "_0" * 9_000 + "Z", AUGUST, id="_ and 0"
        ),
        pytest.param("(2013-08-07 15:31:02." + "0" * 9_000 + "_5+05:30)", SECOND, id="zeros"),
        pytest.param("(2013-08-07 06:01:02.123456" + "_" * 9_000 + " nyc)", AUGUST, id="underscores"),
        pytest.param('"' + "0" * 9_000 + "8/7/2013 10:01:02.123456" + '"', AUGUST, id="zeros of a month"),
        ("2013-08-07T06:01:02.123456-04:00", AUGUST),
        ('"07 Aug 2013 10:01:02"', SECOND),
        ('"2013 Aug 07 10:01:02"', SECOND),
        ("(07aug2013 10:01:02)", SECOND),
        ("(8/7/13 10:01:02)", SECOND),
        ("(2013/8/7 10:01:02)", SECOND),
        ("(20130807 1001)", SECOND - 2_000_000),
        ("(1970-01-01 00:00:00Z)", 0),
        ("(1969-12-31 24:00:00Z)", 0),
        ("(1969-12-31 23:59:60.9Z)", 0),
        ("(1969-12-31 23:59:59.9Z)", -100_000),
        ("(1970-01-01 00:00:00.000_001)", 1),
        ("(1970-01-01 00:00:00.)", 0),
        ("(0000-02-29 00:00:00Z)", -62_167_219_200_000_000 + 59 * DAY),
        ("(0001-01-01 00:00:00Z)", -62_135_596_800_000_000),
        ("(0000-01-01 00:00:00 Asia/Tokyo)", -62_167_219_200_000_000 - 33_539_000_000),
    ],
)
def test_the_forms_of_a_time(time: str, microseconds: int) -> None:
    assert ack(time) == microseconds


@pytest.mark.parametrize(
    ("written", "year"),
    [("0", 2000), ("74", 2074), ("75", 1975), ("99", 1999), ("100", 100), ("0000", 2000), ("9999", 9999)],
)
def test_short_years_are_those_around_2000(written: str, year: int) -> None:
    assert ack(f"(1/2/{written} 00:00:00Z)") == (datetime(year, 1, 2, tzinfo=UTC) - EPOCH) // MICROSECOND


@pytest.mark.parametrize(
    ("zone", "hours"), [("gmt", 0), ("utc", 0), ("chi", -5), ("nyc", -4), ("hkg", 8), ("lon", 1), ("tyo", 9)]
)
def test_short_names_of_zones(zone: str, hours: int) -> None:
    assert ack(f"(2013-08-07 10:01:02 {zone})") == SECOND - hours * 3_600_000_000


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [
        ("00:00", 0),
        ("0:00", 0),
        ("2359", 86340),
        ("23:59:59", 86399),
        ("24:00", 86400),
        ("24:00:00.0", 86400),
    ],
)
def test_the_first_and_the_last_time_of_a_day(clock: str, seconds: int) -> None:
    assert ack(f"(1970-01-01 {clock}Z)") == seconds * 1_000_000


@pytest.mark.parametrize("octets", range(4090, 4103))
def test_a_fraction_may_be_long_before_a_zone(octets: int) -> None:
    begin, end = "1970-01-01 00:00:00.5", " America/Argentina/ComodRivadavia"
    written = begin + "0" * (octets - len(begin + end)) + end
    assert time_of_sexp(written.encode()) == 3 * 3_600_000_000 + 500_000
    with pytest.raises(ConversionError, match="must be a time such as"):
        time_of_sexp(written.replace(".50", ".5x").encode())


@pytest.mark.parametrize(
    "time",
    [
        "0", "1375869662", "1375869662.5", "now", '""', "()", "(())", "2013-08-07", "(2013-08-07)",
        "(10:01:02)",
        "(2013-08-07 10)", "(2013-08-07 10:1)", "(2013-08-07 10:60)", "(2013-08-07 25:00)",
        "(2013-08-07 24:01)",
        "(2013-08-07 24:00:00.1)", "(2013-08-07 23:59:61)", "(2013-08-07 10:01:02,5)",
        "(2013-08-07 +10:01:02)",
        "(9999999999/1/2013 10:01)", "(1/9999999999/2013 10:01)", "(1/1/9999999999 10:01)",
        "(-1/1/2013 10:01)",
        "(2013-13-07 10:01)", "(2013-00-07 10:01)", "(2013-08-00 10:01)", "(2013-08-32 10:01)",
        "(1900-02-29 10:01)", "(2013-8-7 10:01)", "(13-08-07 10:01)", "(-013-08-07 10:01)",
        "(2013-08-07 10:01:02+)", "(2013-08-07 10:01:02+25:00)", "(2013-08-07 10:01:02+1:2)",
        "(2013-08-07 10:01:02Z UTC)", "(2013-08-07 10:01:02 No/Where)",
        "(2013-08-07 10:01:02 /etc/localtime)",
        "(2013-08-07 10:01:02 ../UTC)", '(2013-08-07 10:01:02 "")', "(2013-08-07 10:01:02 Europe)",
        "(2013-08-07 10:01:02 \xff)", '(2013-08-07 10:01:02 "\\000")', "(2013-08-07 10:01:02 UTC UTC)",
        "((2013-08-07) 10:01:02)", "(2013-08-07 (10:01:02))", "(2013-08-07 10:01:02 (UTC))",
        "(08/07/2013/1 10:01)", "(08/07 10:01)", "(99999999999999999999/1/1 10:01)", "(10000/1/1 10:01)",
        "(\u0662013-08-07 10:01:02)",
        "(07aUG2013 10:01:02)", "(07AUg2013 10:01:02)", "(07AuG2013 10:01:02)", '"2013 aUg 07 10:01:02"',
    ],
)  # fmt: skip
def test_invalid_times_are_refused(time: str) -> None:
    sexp = read(time.encode())
    assert sexp is not None
    with pytest.raises(ConversionError, match="must be"):
        time_of_sexp(sexp)


@pytest.mark.parametrize(
    "name",
    [
        b"a" * 100_000,
        b"../" * 1000 + b"UTC",
        b"." * 1000,
        b"a." * 1000 + b"a",
        b"a/" * 1000 + b"a",
    ],
    ids=["long", "above", "dots", "dotted", "deep"],
)
def test_a_zone_with_a_strange_name_is_only_unknown(name: bytes) -> None:
    with pytest.raises(ConversionError, match="known zone"):
        time_of_sexp([b"2013-08-07", b"10:01:02", name])


def test_a_time_is_printed_with_microseconds_and_z() -> None:
    assert sexp_of_time(AUGUST) == [b"2013-08-07", b"10:01:02.123456Z"]
    assert sexp_of_time(0) == [b"1970-01-01", b"00:00:00.000000Z"]
    assert sexp_of_time(-1) == [b"1969-12-31", b"23:59:59.999999Z"]
    assert sexp_of_time(-62_135_596_800_000_000) == [b"0001-01-01", b"00:00:00.000000Z"]


@pytest.mark.parametrize("microseconds", [-62_135_596_800_000_001, 253_402_300_800_000_000, 2**80, -(2**80)])
def test_years_beyond_four_digits_cannot_be_printed(microseconds: int) -> None:
    with pytest.raises(OverflowError):
        sexp_of_time(microseconds)


@given(st.integers(-EXACT, EXACT))
@example(EXACT)
@example(-EXACT)
def test_a_printed_time_is_read_back_exactly(microseconds: int) -> None:
    assert time_of_sexp(sexp_of_time(microseconds)) == microseconds


@given(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    st.integers(-1439, 1439),
    st.sampled_from([" ", "T"]),
)
def test_an_offset_says_how_far_ahead_the_clock_is(clock: datetime, minutes: int, between: str) -> None:
    clock = clock.replace(microsecond=0)
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    moment = clock.replace(tzinfo=UTC) - timedelta(minutes=minutes)
    assert time_of_sexp((clock.isoformat(between) + offset).encode()) == (moment - EPOCH) // MICROSECOND


PARTS = [
    b"2013", b"08", b"07", b"8", b"0000", b"9999", b"-", b"/", b":", b".", b"+", b"Z", b"T", b" ", b"_",
    b"24", b"60",
    b"0", b"Aug", b"feb", b"29", b"UTC", b"nyc", b"Europe/", b"London", b"2013-08-07", b"10:01:02", b"1/1/1",
    b"\0", b"\xff", b"\n", b"0x7", b"99999999999999999999",
]  # fmt: skip
words = st.one_of(st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join), st.binary(max_size=12))


@given(st.one_of(words, st.lists(words, max_size=4)))
def test_anything_is_a_time_or_refused(sexp: Sexp) -> None:
    try:
        microseconds = time_of_sexp(sexp)
    except ConversionError:
        return
    # A day more on both sides, for an offset.
    assert -62_167_219_200_000_000 - 2 * DAY < microseconds < 253_402_300_800_000_000 + 2 * DAY
