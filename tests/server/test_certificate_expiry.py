"""Certificates that have expired or soon will are told in the log, while there is time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, CertificateFiles
from trio.testing import MockClock

from omq.terminals.connection.expiry import expiry

from .conversation import eventually, serving

DAY = 86_400.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def settings(shown: CertificateFiles) -> dict[str, Any]:
    return {"tls_cert": str(shown.cert), "tls_key": str(shown.key)}


def after(**delta: float) -> datetime:
    return (datetime.now(UTC) + timedelta(**delta)).replace(microsecond=0)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for record in caplog.records if "certificate" in (line := record.getMessage())]


@pytest.mark.parametrize("far", [timedelta(days=30, hours=1), timedelta(days=20_000)])
async def test_one_that_lasts_is_not_mentioned(
    store: Path, authority: Authority, caplog: pytest.LogCaptureFixture, clock: MockClock, far: timedelta
) -> None:
    shown = authority.issue("127.0.0.1", ends=datetime.now(UTC) + far)
    async with serving(store, **settings(shown)) as host:
        clock.jump(2 * DAY)
        await (await host.connect()).confirm()
    assert told(caplog) == []


async def test_one_that_ends_soon_is_told_at_the_start_and_each_day(
    store: Path, authority: Authority, caplog: pytest.LogCaptureFixture, clock: MockClock
) -> None:
    ends = after(days=29, hours=23)
    shown = authority.issue("127.0.0.1", ends=ends)
    line = (
        f"tls_cert: a certificate in {shown.cert} expires in 29 days: "
        f"it is valid until {ends:%Y-%m-%d %H:%M} UTC"
    )
    async with serving(store, **settings(shown)):
        await eventually(lambda: told(caplog) == [line])
        for day in range(2, 4):
            clock.jump(DAY)
            await eventually(lambda: told(caplog) == [line] * day)  # noqa: B023 - it is called before the next round of the loop
    assert {record.levelname for record in caplog.records if "certificate" in record.getMessage()} == {
        "WARNING"
    }


async def test_one_that_has_expired(
    store: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    ends = after(hours=-1)
    shown = authority.issue("127.0.0.1", ends=ends)
    async with serving(store, **settings(shown)):
        await eventually(lambda: bool(told(caplog)))
    assert told(caplog) == [
        f"tls_cert: a certificate in {shown.cert} has expired: it was valid until {ends:%Y-%m-%d %H:%M} UTC"
    ]


async def test_the_first_to_end_of_a_file_and_those_of_authorities_count(
    store: Path, authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    served = authority.issue("127.0.0.1")
    served.cert.write_bytes(
        served.cert.read_bytes() + authority.issue("chain", "chain", after(days=2, hours=1)).cert.read_bytes()
    )
    authorities = tmp_path / "authorities.pem"
    old = authority.issue("old", "old", after(days=-400))
    authorities.write_bytes(b"a remark\n" + authority.file.read_bytes() + old.cert.read_bytes())
    async with serving(store, **settings(served), tls_client_ca=str(authorities)):
        await eventually(lambda: len(told(caplog)) == 2)
    assert "in 2 days" in told(caplog)[0]
    assert told(caplog)[1].startswith(f"tls_client_ca: a certificate in {authorities} has expired")


@pytest.mark.parametrize("year", [1999, 2049, 2050, 2100])
def test_both_ways_to_write_a_time(authority: Authority, year: int) -> None:
    """Until 2049 two digits of the year are written, and from then on four."""
    ends = datetime(year, 6, 30, 12, 34, 56, tzinfo=UTC)
    found = expiry("tls_cert", str(authority.issue("host", ends=ends).cert))
    assert found is not None
    assert found.ends == ends


def test_an_invalid_certificate_has_no_expiry(tmp_path: Path) -> None:
    file = tmp_path / "odd.pem"
    for body in ("", "AAAA", "MIIB", "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A", "MAQwAjAA", "not base64!"):
        file.write_text(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
        assert expiry("tls_cert", str(file)) is None
