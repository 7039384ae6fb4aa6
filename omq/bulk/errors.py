"""The errors of bulk readers and writers, and so of the Spark data source. Each message is one or two
sentences for users.
"""

from omq.errors import ConnectionLost as ConnectionLost
from omq.errors import OmqError as OmqError


class BadOptions(OmqError, ValueError):
    """Options are missing, malformed or contradictory; the message names them."""


class Unreachable(OmqError):
    """The server did not answer, or stopped answering, and all retries failed."""


class ServerRefused(OmqError):
    """The server refused; the message is its sentence."""


class NoSuchTopic(ServerRefused):
    """The server refused because it has no such topic any more."""


class UnknownTopic(OmqError):
    """The topic does not exist."""


class DataLoss(OmqError):
    """Messages that were stored are not available any more. With `failOnDataLoss` false the reader skips them
    and logs which and how many.

    Ids that a power failure left unused, or whose messages it lost, are not data loss: no reader could ever
    read them, so the reader only logs them.
    """


class BadRow(OmqError, ValueError):
    """A row cannot become a message."""
