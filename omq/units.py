"""Sizes and times with a unit, such as 10GiB and 30d: the configuration and the commands take plain numbers
of octets and of seconds, and say which number is meant.
"""

import re

_WITH_UNIT = re.compile(r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*([A-Za-z]{1,3})\s*", re.ASCII)

_OCTETS = {"B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("iB", 1024), ("B", 1000), ("", 1024))
}

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def octets_meant(text: str) -> int | None:
    """Return the number of octets that a size with a unit stands for; None for any other text."""
    found = _WITH_UNIT.fullmatch(text)
    factor = None if found is None else _OCTETS.get(found[2][0].upper() + found[2][1:])
    return None if found is None or factor is None else round(float(found[1]) * factor)


def seconds_meant(text: str) -> int | float | None:
    """Return the number of seconds that a time with a unit stands for; None for any other text."""
    found = _WITH_UNIT.fullmatch(text)
    factor = None if found is None else _SECONDS.get(found[2])
    if found is None or factor is None:
        return None
    seconds = float(found[1]) * factor
    return int(seconds) if seconds.is_integer() else seconds
