"""The losses of messages that a client reports, and the tasks to which it reports them."""

from contextlib import nullcontext

import pytest

from omq.client import ConnectionLost
from omq.client.ledger import MOST_FAILURES, Ledger


class Task:
    """Stands for the task that publishes."""


def lossy_ledger(task: Task, lost: int) -> Ledger:
    """Return a ledger of a connection that was lost with N (`lost`) messages, the last of them awaited."""
    ledger = Ledger(lambda: task)
    ledger.see()
    ledger.published = lost
    ledger.lost("the connection broke", private=True)
    return ledger


def test_the_loss_of_an_awaited_message_does_not_hide_the_loss_of_earlier_ones() -> None:
    task = Task()
    ledger = lossy_ledger(task, 2)
    ledger.loss_of_one_reported(2)
    with pytest.raises(ConnectionLost):
        ledger.report(2)
    ledger.report(2)


def test_a_message_published_again_after_a_loss_with_others_does_not_repeat_it() -> None:
    task = Task()
    ledger = lossy_ledger(task, 2)
    ledger.loss_of_one_reported(2)
    ledger.published = 3
    ledger.settle(3)
    ledger.report_to_publisher(3)
    with pytest.raises(ConnectionLost):
        ledger.report(3)  # of the first message
    ledger.report(3)


def test_the_loss_of_an_awaited_message_alone_is_not_repeated() -> None:
    task = Task()
    ledger = lossy_ledger(task, 1)
    ledger.loss_of_one_reported(1)
    ledger.report(1)


def test_the_loss_of_an_awaited_message_does_not_hide_the_loss_of_another_connection() -> None:
    task = Task()
    ledger = lossy_ledger(task, 1)
    ledger.published = 2
    ledger.lost("the connection broke", private=True)
    ledger.loss_of_one_reported(2)
    with pytest.raises(ConnectionLost):
        ledger.report(2)


def test_a_loss_of_which_every_publisher_was_told_is_not_repeated_at_the_end() -> None:
    ledger = lossy_ledger(Task(), 2)
    ledger.loss_of_one_reported(1)
    ledger.loss_of_one_reported(2)
    ledger.report_unreported()


@pytest.mark.parametrize("are_all_told", [True, False])
def test_merged_losses_are_repeated_at_the_end_unless_every_publisher_was_told(are_all_told: bool) -> None:
    ledger = lossy_ledger(Task(), 2)
    for _ in range(MOST_FAILURES):
        ledger.loss_of_one_reported(ledger.published)
        if are_all_told:
            ledger.loss_of_one_reported(ledger.published - 1)
        ledger.published += 2
        ledger.lost("the connection broke", private=True)
    ledger.loss_of_one_reported(ledger.published)
    ledger.loss_of_one_reported(ledger.published - 1)
    with nullcontext() if are_all_told else pytest.raises(ConnectionLost):
        ledger.report_unreported()
