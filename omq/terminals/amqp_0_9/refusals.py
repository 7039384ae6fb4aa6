"""Refusals of sessions and drivers, in the reply codes of AMQP 0-9-1."""

from typing import assert_never

from omq.drivers.reasons import Failure, Reason
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ReplyCode


def code_of(reason: Reason) -> ReplyCode:
    """Return the reply code for a reason."""
    match reason:
        case Reason.NOT_FOUND | Reason.DELETED:
            return ReplyCode.NOT_FOUND
        case Reason.DIFFERS | Reason.INVALID | Reason.TOO_LARGE | Reason.NO_REPLAY:
            return ReplyCode.PRECONDITION_FAILED
        case Reason.FORBIDDEN | Reason.IN_USE:
            return ReplyCode.ACCESS_REFUSED
        case Reason.LOCKED:
            return ReplyCode.RESOURCE_LOCKED
        case Reason.QUOTA | Reason.NO_ROOM | Reason.TOPIC_FULL | Reason.OVERFLOW:
            return ReplyCode.RESOURCE_ERROR
        case Reason.STORE_FAILED | Reason.EARLIER | Reason.DEFECT:
            return ReplyCode.INTERNAL_ERROR
        case _:
            assert_never(reason)


def problem_of(failure: Failure, method: type[Method]) -> ChannelProblem:
    """Return the problem that ends the channel on which a method of this type was refused."""
    text = failure.amqp or failure.text
    return ChannelProblem(code_of(failure.reason), text, method.CLASS, method.METHOD)


def failed(method: Method, text: str) -> ChannelProblem:
    """Return the problem that ends the channel of a method whose precondition has failed."""
    return ChannelProblem(ReplyCode.PRECONDITION_FAILED, text, method.CLASS, method.METHOD)
