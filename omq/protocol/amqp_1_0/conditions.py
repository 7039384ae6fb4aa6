"""The error conditions of AMQP 1.0 that the server tells its peers (part 2, sections 2.8.15 to 2.8.18)."""

from enum import Enum

from omq.protocol.amqp_1_0 import performatives


class Condition(Enum):
    """An error condition; the value is the symbol on the wire."""

    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LOCKED = "amqp:resource-locked"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    RESOURCE_DELETED = "amqp:resource-deleted"
    ILLEGAL_STATE = "amqp:illegal-state"

    CONNECTION_FORCED = "amqp:connection:forced"
    FRAMING_ERROR = "amqp:connection:framing-error"

    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    WINDOW_VIOLATION = "amqp:session:window-violation"

    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    STOLEN = "amqp:link:stolen"


class ConditionRaised(Exception):
    """The reason why a connection, a session or a link ends: a condition, and a sentence for its user."""

    def __init__(self, condition: Condition, text: str) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text

    def error(self) -> bytes:
        """Return the octets of the error that tells it."""
        return performatives.write(performatives.Error(self.condition.value, self.text))


class ConnectionProblem(ConditionRaised):
    """Ends the connection."""


class SessionProblem(ConditionRaised):
    """Ends a session; the others of the connection go on."""


class LinkProblem(ConditionRaised):
    """Detaches a link; the others of its session go on."""
