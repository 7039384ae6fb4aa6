"""Times of messages: microseconds since the epoch."""

import datetime

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse(text: str) -> int:
    """Parse a time in ISO 8601. A time without a zone has this machine's zone. Raises ValueError."""
    try:
        return _since_epoch(datetime.datetime.fromisoformat(text).astimezone(datetime.UTC))
    except OverflowError as error:
        raise ValueError(f"{text} is before the year 1 or after the year 9999 in UTC") from error


def microseconds(time: datetime.datetime) -> int:
    """Return the microseconds since the epoch. A time without a zone has this machine's zone."""
    try:
        moment = time.astimezone(datetime.UTC)
    except (ValueError, OverflowError):  # it is before the year 1 or after the year 9999 in UTC
        moment = time.replace(tzinfo=datetime.UTC)
    return _since_epoch(moment)


def _since_epoch(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)
