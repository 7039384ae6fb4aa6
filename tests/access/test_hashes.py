"""Secrets as they are kept: any costs that a configuration may have."""

import pytest

from omq.access.hashes import SecretHash, hash_of, read_hash


def test_a_hash_fits_its_secret_only() -> None:
    kept = hash_of(b"sesame")
    assert str(kept).startswith("$scrypt$ln=14,r=8,p=1$")
    assert read_hash(str(kept)) == kept
    assert kept.fits(b"sesame")
    assert not any(map(kept.fits, (b"", b"sesam", b"sesame ", b"Sesame", b"sesame\0x")))


def test_no_two_hashes_of_a_secret_are_the_same() -> None:
    assert hash_of(b"sesame") != hash_of(b"sesame")


@pytest.mark.parametrize(
    ("log_n", "r", "p"), [(1, 1, 1), (1, 1, 16), (1, 16, 16), (10, 1, 16), (15, 1, 1), (16, 2, 1), (16, 8, 1)]
)
def test_all_costs_that_are_read_can_be_used(log_n: int, r: int, p: int) -> None:
    kept = read_hash(str(SecretHash(log_n, r, p, bytes(16), bytes(32))))
    assert not kept.fits(b"sesame")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sesame",
        "$scrypt$ln=0,r=8,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + 43 * "A",
        "$scrypt$ln=21,r=8,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + 43 * "A",
        "$scrypt$ln=16,r=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + 43 * "A",
        "$scrypt$ln=20,r=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + 43 * "A",
        "$scrypt$ln=14,r=17,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + 43 * "A",
        "$scrypt$ln=14,r=8,p=1$AAAAAAAAAAAAAAAAAAAAAA$" + 42 * "A",
    ],
)
def test_an_invalid_hash_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not the hash of a secret$"):
        read_hash(text)
