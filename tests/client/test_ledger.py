"""Which losses of messages a client reports, and to whom."""

import pytest

from omq.client import ConnectionLost
from omq.client.ledger import Ledger


class Task:
    """Stands for the task that publishes."""


def lossy_ledger(task: Task, lost: int) -> Ledger:
    """A ledger of a connection that was lost with so many messages, of which the last was awaited."""
    ledger = Ledger(lambda: task)
    ledger.see()
    ledger.published = lost
    ledger.lost("the connection broke", private=True)
    return ledger


def test_the_loss_of_an_awaited_message_does_not_hide_the_loss_of_earlier_ones() -> None:
    task = Task()
    ledger = lossy_ledger(task, 2)
    ledger.loss_of_one_told(2)
    with pytest.raises(ConnectionLost):
        ledger.tell(2)
    ledger.tell(2)


def test_a_message_published_again_after_a_loss_with_others_does_not_repeat_it() -> None:
    task = Task()
    ledger = lossy_ledger(task, 2)
    ledger.loss_of_one_told(2)
    ledger.published = 3
    ledger.settle(3)
    ledger.tell_publisher(3)
    with pytest.raises(ConnectionLost):
        ledger.tell(3)  # of the first message
    ledger.tell(3)


def test_the_loss_of_an_awaited_message_alone_is_not_repeated() -> None:
    task = Task()
    ledger = lossy_ledger(task, 1)
    ledger.loss_of_one_told(1)
    ledger.tell(1)


def test_the_loss_of_an_awaited_message_does_not_hide_the_loss_of_another_connection() -> None:
    task = Task()
    ledger = lossy_ledger(task, 1)
    ledger.published = 2
    ledger.lost("the connection broke", private=True)
    ledger.loss_of_one_told(2)
    with pytest.raises(ConnectionLost):
        ledger.tell(2)
