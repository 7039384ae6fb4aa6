"""One sentence for all refusals that say the same."""

from omq.client.errors import PublishRefused
from omq.client.refusals import together


def test_refusals_for_the_same_reason_are_counted() -> None:
    no_topic = "there is no such topic"
    refusals = (
        f"Publish t: {no_topic}",
        f'Publish "a b": 2 messages: {no_topic}',
        "Publish t: this client may not publish to it",
        f"Publish t: 9 messages: {no_topic}",
        f"Publish t: {no_topic}",
        "the server is stopping",
        "the server is stopping",
    )
    counted = [
        f"Publish t: 11 messages: {no_topic}",
        f'Publish "a b": 2 messages: {no_topic}',
        "Publish t: this client may not publish to it",
        "the server is stopping",
    ]
    assert together(refusals) == counted
    error = PublishRefused("Confirm 1: 14 were refused", "Confirm", b"1", refusals)
    assert str(error) == "; ".join(("Confirm 1: 14 were refused", *counted))
    assert error.refusals == refusals
