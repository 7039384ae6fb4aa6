"""Confirmations: who hears of them, how several become one, and what became of each message."""

from itertools import permutations

import pytest

from omq.drivers.confirmation import CONFIRMED, Confirmation, all_of
from omq.drivers.reasons import Failure, Reason
from omq.drivers.signal import Signal
from omq.model import Topic
from omq.protocol.dmp.responses import ResponseCode
from omq.protocol.omq.frames import encode
from omq.protocol.omq.types import Confirmed, Declared, Error
from omq.terminals.dmp.sink import Posts
from omq.terminals.omq.replies import Replies

FULL = Failure(Reason.NO_ROOM, "the disk is full")
GONE = Failure(Reason.DELETED, "the topic was deleted")


def test_a_confirmation_calls_every_listener_once_in_their_order() -> None:
    calls: list[str] = []
    confirmation = Confirmation()
    confirmation.listen(lambda: calls.append("first"))
    confirmation.listen(lambda: calls.append("second"))
    assert (confirmation.settled, calls) == (False, [])
    confirmation.settle(FULL)
    assert (confirmation.settled, confirmation.failure, calls) == (True, FULL, ["first", "second"])
    confirmation.listen(lambda: calls.append("late"))
    assert calls == ["first", "second", "late"]


def test_a_confirmation_is_settled_once() -> None:
    confirmation = Confirmation()
    confirmation.settle()
    with pytest.raises(AssertionError):
        confirmation.settle(FULL)
    assert confirmation.failure is None


def test_an_immediate_success_tells_every_listener_at_once() -> None:
    calls: list[int] = []
    for number in range(3):
        CONFIRMED.listen(lambda number=number: calls.append(number))  # type: ignore[misc]  # a lambda with a default has no type
    assert calls == [0, 1, 2]
    assert (CONFIRMED.settled, CONFIRMED.failure) == (True, None)
    assert CONFIRMED.outcomes(7) == ((7, None),)


def test_a_post_that_succeeds_or_fails_as_a_whole_has_one_run_of_outcomes() -> None:
    for failure in (None, FULL):
        confirmation = Confirmation()
        confirmation.settle(failure)
        assert confirmation.outcomes(12) == ((12, failure),)


def test_each_message_may_have_an_outcome_of_its_own() -> None:
    confirmation = Confirmation()
    confirmation.settle_each(((3, None), (1, GONE), (2, FULL), (4, None)))
    assert confirmation.failure is GONE
    assert confirmation.outcomes(10) == ((3, None), (1, GONE), (2, FULL), (4, None))
    confirmation = Confirmation()
    confirmation.settle_each(((3, None),))
    assert confirmation.failure is None


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_all_of_several_confirmations_is_settled_with_the_last_of_them(order: tuple[int, ...]) -> None:
    failures = [None, GONE, FULL]
    parts = [Confirmation() for _ in failures]
    whole = all_of([*parts, CONFIRMED])
    heard: list[Failure | None] = []
    whole.listen(lambda: heard.append(whole.failure))
    for number in order:
        assert not whole.settled
        assert not heard
        parts[number].settle(failures[number])
    assert whole.settled
    assert heard == [GONE]  # the first in the order of the parts, in whatever order they were settled


def test_all_of_settled_confirmations_is_settled() -> None:
    failed = Confirmation()
    failed.settle(FULL)
    assert all_of([]).settled
    assert all_of([]).failure is None
    assert all_of([CONFIRMED, CONFIRMED]).failure is None
    assert all_of(iter([CONFIRMED, failed])).failure is FULL


def test_an_omq_client_is_told_of_the_messages_that_failed_and_of_no_others() -> None:
    replies = Replies(Signal())
    confirmation = Confirmation()
    replies.published(b"t", 10, confirmation)
    replies.add(Declared(Topic(1, b"t")))
    replies.confirm(1)
    replies.confirm(2)
    assert replies.collect() == b""
    confirmation.settle_each(((3, None), (1, GONE), (4, None), (2, FULL)))
    assert replies.collect() == b"".join(
        map(
            encode,
            [
                Error(b"Publish t: the topic was deleted"),
                Error(b"Publish t: 2 messages: the disk is full"),
                Declared(Topic(1, b"t")),
                Error(b"Confirm 1: 3 published before it and after the last Confirm were refused"),
                Confirmed(2),
            ],
        )
    )


def test_a_sink_counts_the_messages_that_were_stored_and_no_others() -> None:
    posts = Posts()
    confirmation = Confirmation()
    posts.begin(9)
    confirmation.settle_each(((3, None), (2, GONE), (4, None)))
    problem = posts.settle(9, confirmation)
    assert posts.stored == 7
    assert problem is not None
    assert (problem.code, problem.why) == (ResponseCode.NOT_FOUND, "the topic was deleted")
