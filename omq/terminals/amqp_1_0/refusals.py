"""Refusals of sessions and drivers, as conditions of AMQP 1.0."""

from typing import assert_never

from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem


def condition_of(reason: Reason) -> Condition:
    """Return the condition for a reason."""
    match reason:
        case Reason.NOT_FOUND:
            return Condition.NOT_FOUND
        case Reason.DELETED:
            return Condition.RESOURCE_DELETED
        case Reason.DIFFERS | Reason.NO_REPLAY:
            return Condition.PRECONDITION_FAILED
        case Reason.FORBIDDEN:
            return Condition.UNAUTHORIZED_ACCESS
        case Reason.QUOTA | Reason.NO_ROOM | Reason.TOPIC_FULL | Reason.OVERFLOW:
            return Condition.RESOURCE_LIMIT_EXCEEDED
        case Reason.TOO_LARGE:
            return Condition.MESSAGE_SIZE_EXCEEDED
        case Reason.INVALID:
            return Condition.INVALID_FIELD
        case Reason.IN_USE | Reason.LOCKED:
            return Condition.RESOURCE_LOCKED
        case Reason.STORE_FAILED | Reason.EARLIER | Reason.DEFECT:
            return Condition.INTERNAL_ERROR
        case _:
            assert_never(reason)


def problem_of(failure: Failure) -> LinkProblem:
    """Return the problem with which a link is detached."""
    return LinkProblem(condition_of(failure.reason), failure.text)


def rejection(condition: Condition, text: str) -> bytes:
    """Return the state that rejects a message."""
    error = performatives.write(performatives.Error(condition.value, text))
    return performatives.write(performatives.Rejected(error))
