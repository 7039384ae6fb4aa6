"""The names of the types of topics."""

import pytest

from omq.model import (
    DELIVERIES,
    PERSISTENCES,
    Persistence,
    declaration,
    delivery_name,
    persistence_name,
    read_stored_persistence,
    stored_persistence,
)


def test_types_and_their_names_are_one_to_one() -> None:
    assert {name: delivery_name(delivery) for name, delivery in DELIVERIES.items()} == {
        "broadcast": "broadcast",
        "round-robin": "round-robin",
    }
    assert {
        persistence_name(persistence): stored_persistence(persistence)
        for persistence in PERSISTENCES.values()
    } == {
        "transient": "Transient",
        "strong": "Strong",
        "weak": "Weak",
        "async": "Async",
    }


@pytest.mark.parametrize("persistence", PERSISTENCES.values(), ids=str)
def test_stored_persistence_is_read_back(persistence: Persistence) -> None:
    assert read_stored_persistence(stored_persistence(persistence)) == persistence


@pytest.mark.parametrize("text", ["", "weak", "Persistent", "Weak "])
def test_other_stored_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a persistence"):
        read_stored_persistence(text)


def test_declarations_are_written_as_in_a_declare() -> None:
    written = {
        declaration(delivery, persistence)
        for delivery in DELIVERIES.values()
        for persistence in PERSISTENCES.values()
    }
    assert written == {
        f"{delivery} {persistence}"
        for delivery in ("Broadcast", "Round_robin")
        for persistence in ("Transient", "(Persistent Strong)", "(Persistent Weak)", "(Persistent Async)")
    }
