"""Declare the topics that the server of a replay does not have with the types of their sources."""

import logging
from collections.abc import Sequence

from omq.bulk.errors import ServerRefused
from omq.bulk.remote_connection import RemoteConnection
from omq.model import Delivery, Persistence, Persistent, Sync
from omq.replay.plan import Plan
from omq.replay.request import ToServer

log = logging.getLogger("omq.replay")

_SAFEST_FIRST: Sequence[Persistence] = [Persistent(sync) for sync in (Sync.STRONG, Sync.WEAK, Sync.ASYNC)]


class TargetTopics:
    """The topics to which a replay publishes. It declares each once; it leaves those that exist as they are.

    A topic with several sources gets the safest of their sync levels.
    """

    def __init__(self, plan: Plan, destination: ToServer) -> None:
        wanted: dict[bytes, list[Persistence]] = {}
        for part in plan.parts:
            if len(part):
                target = (destination.topic or part.topic.name).encode()
                wanted.setdefault(target, []).append(part.topic.persistence)
        self._missing = {target: min(found, key=_SAFEST_FIRST.index) for target, found in wanted.items()}
        self._is_compared = False

    def declare(self, connection: RemoteConnection, target: bytes) -> None:
        """Declare this topic unless it exists or was declared. If the server refuses that, do nothing: it
        gives the reason again when messages for the topic arrive.

        Raises ConnectionLost, and ServerRefused if the server does not list its topics.
        """
        if not self._is_compared:
            for info in connection.topics():
                self._missing.pop(info.topic, None)
            self._is_compared = True
        persistence = self._missing.get(target)
        if persistence is None:
            return
        try:
            # Only broadcast topics can be read in bulk.
            connection.declare(target, Delivery.BROADCAST, persistence)
        except ServerRefused as refused:
            log.debug("the topic %r is not declared: %s", target, refused)
        del self._missing[target]

    def declare_all(self, connection: RemoteConnection) -> None:
        """Declare all topics as `declare` does."""
        for target in list(self._missing):
            self.declare(connection, target)
