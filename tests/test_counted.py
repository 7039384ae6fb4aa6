"""Numbers of things in sentences."""

from omq.counted import counted


def test_one_thing_is_no_plural() -> None:
    assert [counted(number, "message") for number in range(3)] == ["0 messages", "1 message", "2 messages"]


def test_a_number_has_its_form() -> None:
    assert counted(1234, "octet", ",") == "1,234 octets"
