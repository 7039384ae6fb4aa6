"""Helpers for replays: the command line, and the messages of a server afterwards."""

import argparse
from collections import Counter
from typing import NoReturn

from omq.bulk.access import Gap
from omq.bulk.remote import RemoteServer, RetryPolicy, parse_servers
from omq.model import Delivery, PersistenceName, persistence_name
from omq.replay import command
from omq.replay.arguments import add_arguments, add_server_arguments
from omq.replay.meter import Meter
from omq.replay.request import ReplayRequest
from omq_storage.blocks import FRAME_HEADER, Block


class WrongCommandLine(Exception):
    """The command line was wrong."""


def refuse(sentence: str) -> NoReturn:
    raise WrongCommandLine(sentence)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_server_arguments(parser)
    add_arguments(parser)
    return parser.parse_args(words)


def request(*words: str) -> ReplayRequest:
    return command.request_of(parsed(*words))


def replay(*words: str) -> int:
    """Return the exit status."""
    return command.run(parsed(*words), refuse)


def stored(address: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Return the body and the head of each message that a server has, in order; none where there is
    no topic.
    """
    found = []
    with RemoteServer(parse_servers(address), RetryPolicy(0)) as server:
        topics = server.topics()
        if topic not in topics:
            return []
        info = topics[topic]
        for messages in server.fetch(info, info.first, info.next, _bodies_and_heads):
            assert not isinstance(messages, Gap)
            found += messages
    return found


def types(address: str) -> dict[str, tuple[Delivery, PersistenceName]]:
    """Return the types of each topic that a server has."""
    with RemoteServer(parse_servers(address), RetryPolicy(0)) as server:
        found = server.connected().topics()
    return {info.topic.decode(): (info.delivery, persistence_name(info.persistence)) for info in found}


def _bodies_and_heads(block: Block, messages: range) -> list[tuple[bytes, bytes]]:
    return [(bytes(block.frame(message)[FRAME_HEADER:]), block.head(message)) for message in messages]


def bodies(address: str, topic: str) -> list[bytes]:
    return [body for body, _ in stored(address, topic)]


class Counting(Meter):
    """A meter without output."""

    def __init__(self) -> None:
        super().__init__(0)
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    @property
    def counts(self) -> Counter[str]:
        return +self.messages
