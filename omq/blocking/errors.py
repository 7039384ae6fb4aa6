"""What can go wrong between Spark and omq. Every message is a sentence or two for its user."""


class OmqError(Exception):
    """The root of these errors."""


class BadOptions(OmqError, ValueError):
    """Options that are missing, malformed, or make no sense together; the message names them."""


class Unreachable(OmqError):
    """The server did not answer, or stopped answering, and trying again did not help."""


class Refused(OmqError):
    """The server said no; the message is its sentence."""


class UnknownTopic(OmqError):
    """There is no such topic."""


class DataLoss(OmqError):
    """Messages that were there cannot be had any more. With `failOnDataLoss` false they are skipped, and the
    log says which and how many.

    Ids that a power failure left unused, or whose messages it took, are no such loss: no reader can ever have
    them, so they are only logged.
    """


class BadRow(OmqError, ValueError):
    """A row that cannot be a message."""
