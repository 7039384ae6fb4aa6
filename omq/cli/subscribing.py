"""`omq sub`: print the messages of topics as they arrive."""

import argparse
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import assert_never

import trio

from omq.access.rights import Names
from omq.cli.output import (
    formatted,
    joined,
    json_envelope,
    say,
    shown,
    watch_output,
    write_all,
)
from omq.cli.printer import Printer, StoppedClock
from omq.cli.saving import Files
from omq.cli.since import replay_since
from omq.client import Client, ConnectionLost, EnvelopeRun, FeedFailed, MessageRun, OmqError, ServerError
from omq.model import Delivery, FromBeginning, FromCurrent, FromMessage, Replay, TopicInfo, Transient

LOOK_SECONDS = 1.0
LOOK_SHARE = 50
"""The client lists the server's topics every LOOK_SECONDS, or after LOOK_SHARE times the time of the last
answer, whichever is longer.
"""


@dataclass(frozen=True, slots=True)
class Since:
    """A start at the first message at or after a time, in microseconds since the epoch."""

    time: int


Start = Replay | Since


class TooFewMessages(OmqError):
    """Fewer messages arrived than requested."""


async def sub(client: Client, options: argparse.Namespace) -> None:
    """Print messages until there are enough, nothing comes for too long, or all topics are deleted."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_output, nursery.cancel_scope)
        printer = Printer(options.format, options.count, options.timeout, nursery.cancel_scope)
        with printer.waiting:
            await _Subscriber(client, options, printer).run()
        nursery.cancel_scope.cancel()
    if printer.waiting.cancelled_caught and printer.left is not None:
        raise TooFewMessages(
            f"no message came for {options.timeout:g} s, and {options.count - printer.left} of "
            f"{options.count} are printed"
        )


class _Subscriber:
    """The printed topics: the named ones, and those that match patterns."""

    def __init__(self, client: Client, options: argparse.Namespace, printer: Printer) -> None:
        self._client = client
        self._options = options
        self._printer = printer
        self._named: list[bytes] = []
        self._patterns: list[bytes] = []
        for topic in dict.fromkeys(options.topics):
            is_pattern = topic.endswith(b"*") and not options.exact
            (self._patterns if is_pattern else self._named).append(topic)

    async def run(self) -> None:
        """Print until all named topics are deleted; without end if there is a pattern."""
        async with trio.open_nursery() as nursery:
            for name in self._named:
                nursery.start_soon(self._print, name, self._options.replay, None, self._printer.stop_clock())
            if self._patterns:
                nursery.start_soon(self._look, nursery, self._printer.stop_clock())

    async def _look(self, nursery: trio.Nursery, begun: StoppedClock) -> None:
        """Find matching topics, including those that appear later, and print them."""
        matching = Names.of_octets(self._patterns)
        ids: set[int] = set()
        start: Start | None = self._options.replay
        while self._printer.left != 0:
            try:
                # Wait for the connection first: the time of an outage is no time of the server's answer.
                await self._client.ping()
                before = trio.current_time()
                with self._printer.stop_clock():  # a long list takes seconds
                    infos = await self._client.topics()
            except ConnectionLost:
                if not self._options.reconnect or self._client.ended:
                    raise
                begun.close()
                continue
            for info in infos:
                if info.topic in matching and info.topic not in self._named and info.id not in ids:
                    nursery.start_soon(self._print_found, info, start, self._printer.stop_clock())
            # A topic that is deleted and created again has another id.
            ids = {info.id for info in infos}
            start = None
            begun.close()
            await trio.sleep(max(LOOK_SECONDS, LOOK_SHARE * (trio.current_time() - before)))

    async def _print_found(self, info: TopicInfo, start: Start | None, begun: StoppedClock) -> None:
        """Print a topic that matches a pattern. `start` is None for a topic that appeared later, which is
        printed from its beginning. If the server refuses a topic, report it and continue with the others.
        """
        replayable = info.delivery is Delivery.BROADCAST and not isinstance(info.persistence, Transient)
        if not replayable:
            if start is not None and not isinstance(start, FromCurrent):
                say(f"{shown(info.topic)} cannot be replayed: it is printed from the next message on")
            start = FromCurrent()
        try:
            await self._print(info.topic, FromBeginning() if start is None else start, info, begun)
        except (ServerError, FeedFailed) as error:
            say(str(error))

    async def _print(self, name: bytes, start: Start, info: TopicInfo | None, begun: StoppedClock) -> None:
        """Print one topic until it is deleted. Close `begun` when its messages can come."""
        with begun:
            while True:
                try:
                    replay = await self._replay(name, start, info)
                    if self._options.output_dir is not None:
                        await self._save_messages(name, replay, self._options.output_dir, begun)
                    elif self._options.dmp:
                        await self._print_envelopes(name, replay, begun)
                    else:
                        await self._print_messages(name, replay, begun)
                except ConnectionLost:
                    # This repeats no message: iteration raises only when the client has given up the
                    # connection.
                    if not self._options.reconnect or self._client.ended:
                        raise
                    begun.close()
                else:
                    return

    async def _replay(self, name: bytes, start: Start, info: TopicInfo | None) -> Replay:
        match start:
            case Since(time):
                if info is None:
                    info = next((info for info in await self._client.topics() if info.topic == name), None)
                return await replay_since(self._client, name, info, time)
            case FromBeginning() | FromCurrent() | FromMessage():
                return start
            case _:
                assert_never(start)

    async def _print_messages(self, name: bytes, replay: Replay, begun: StoppedClock) -> None:
        credit = self._options.credit
        printer = self._printer
        async with self._client.subscribe(name, replay, credit=credit) as subscription:
            begun.close()
            if printer.left == 0:
                return
            async for run in subscription.runs():

                def text(count: int, run: MessageRun = run) -> bytes:
                    first = MessageRun(run.topic, run.ids[:count], run.bodies[:count])
                    return formatted(printer.form, name, first)

                printed = await printer.print(len(run.ids), text)
                if printed and printer.left == 0:
                    for id in run.ids[:printed] if credit is not None else ():
                        await subscription.received(id)
                    printer.end()
                if printer.left == 0:
                    # Until it is cancelled: a gap after the last message is not reported.
                    await trio.sleep_forever()

    async def _print_envelopes(self, name: bytes, replay: Replay, begun: StoppedClock) -> None:
        printer = self._printer
        async with self._client.feed(name, replay) as feed:
            begun.close()
            if printer.left == 0:
                return
            async for run in feed.runs():

                def text(count: int, run: EnvelopeRun = run) -> bytes:
                    if printer.form == "json":
                        lines = islice(run.envelopes(), count)
                        return b"".join([json_envelope(name, envelope) for envelope in lines])
                    return joined(printer.form, run.bodies[:count])

                printed = await printer.print(len(run.bodies), text)
                if printed and printer.left == 0:
                    printer.end()
                if printer.left == 0:
                    await trio.sleep_forever()

    async def _save_messages(self, name: bytes, replay: Replay, directory: Path, begun: StoppedClock) -> None:
        files = Files(directory, name)
        async with self._client.feed(name, replay) as feed:
            begun.close()
            if self._printer.left == 0:
                return
            async for message in feed.opened():
                path = await files.save(message, self._printer.arrived)
                await trio.to_thread.run_sync(write_all, os.fsencode(path) + b"\n")
                self._printer.saved()
