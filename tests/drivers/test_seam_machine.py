"""Terminals and drivers in any order of operations, compared with a model, for every kind of topic.

The operations of one example are drawn while they are carried out in one run of Trio: which ones are possible
depends on what the drivers did before. Memory is small and some messages are large, so that they go out of
memory, publishers wait, and messages come in pieces.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import product
from pathlib import Path
from typing import assert_never

import outcome
import pytest
import trio
import trio.testing
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from seam_model import FOREVER, Broadcast, Log, Member, RoundRobin
from served_drivers import KIB, MIB, NOTHING, Client, Drivers, Kind, messages_of, of_kinds, quiet, serving

from omq.drivers.housekeeping import tidy
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    Accepted,
    CreditKind,
    EndReason,
    Granted,
    Modified,
    Outcome,
    Piece,
    Rejected,
    RemainderHolder,
    TakenMessages,
    Unavailable,
)
from omq.model import FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.batches import Bodies
from omq_storage.store import Store

MEMORY = MIB
SIZES = [0, 1, 30, 5 * KIB, 5 * KIB, 40 * KIB, 40 * KIB, 70 * KIB, 1200 * KIB]
HEAD = b"\0" * 4
OUTCOMES: list[Outcome] = [
    ACCEPTED,
    REJECTED,
    RELEASED,
    *(Modified(*flags) for flags in product([False, True], repeat=2)),
]


class SharedExampleStore:
    """A store that examples share, as it takes several commits to open one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store = self._open()

    def _open(self) -> Store:
        return Store.open(self._path, map_size=1 << 30, boot_id="first")

    def restart(self, *, killed: bool) -> None:
        self.store.close(clean=not killed)
        self.store = self._open()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedExampleStore]:
    many = SharedExampleStore(tmp_path_factory.mktemp("machine") / "store")
    yield many
    many.store.close()


class Turn(Enum):
    """The end of the drivers of one start."""

    OVER = "the example is over"
    CLEAN = "the server is started again"
    KILLED = "it is killed, and started again"


class Step:
    """One operation that is possible now. No dataclass: Hypothesis prints only the label."""

    def __init__(self, label: str, run: Callable[[], Awaitable[Turn | None]]) -> None:
        self.label = label
        self.run = run

    def __repr__(self) -> str:
        return self.label


class Machine:
    """One topic, its publisher and its clients."""

    def __init__(
        self, kind: Kind, data: st.DataObject, stores: SharedExampleStore, clock: trio.testing.MockClock
    ) -> None:
        self.kind = kind
        self.draw = data.draw
        self.stores = stores
        self.clock = clock
        self.members: list[Member] = []
        self.opened = 0
        self.posted = 0
        self.pending: trio.CancelScope | None = None
        self.steps = self.draw(st.integers(3, 40), label="steps")
        self.restarts = 1
        self.forget_all()

    def forget_all(self, next: int = 1) -> None:
        """Forget all messages: the topic is new, or has lost everything."""
        self.log = Log(next=next)
        self.model = Broadcast(self.log) if self.kind.is_broadcast else RoundRobin(self.log)

    # -- the run -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        turn = Turn.CLEAN
        begins = True
        while turn is not Turn.OVER:
            async with serving(self.stores.store, memory=MEMORY) as drivers:
                if begins:
                    for driver in list(drivers.catalogue):  # of an example that failed
                        await drivers.catalogue.delete(driver.topic.topic)
                begins = False
                # A nursery would wrap what is raised, also what Hypothesis raises to end an example.
                captured = await outcome.acapture(self.start, drivers)
            turn = captured.unwrap()
            if turn is not Turn.OVER:
                self.stores.restart(killed=turn is Turn.KILLED)

    async def start(self, drivers: Drivers) -> Turn:
        self.drivers = drivers
        self.driver = await drivers.topic(self.kind)
        self.check_start()
        async with trio.open_nursery() as self.nursery:
            captured = await outcome.acapture(self.operate)
            self.nursery.cancel_scope.cancel()
        return captured.unwrap()

    def check_start(self) -> None:
        """Check that after a restart the topic goes on where it was, or behind: no id gets a second
        meaning.
        """
        self.members.clear()
        if self.kind.is_persistent:
            assert self.driver.next_id == self.log.next
        else:
            assert self.driver.next_id >= self.log.next
            self.forget_all(self.driver.next_id)

    async def operate(self) -> Turn:
        while self.steps:
            self.steps -= 1
            step = self.draw(st.sampled_from(list(self.possible())), label="step")
            turn = await step.run()
            if turn is not None:
                return turn
            await quiet()
            self.check()
        await self.end()
        return Turn.OVER

    def check(self) -> None:
        if self.pending is None:
            assert self.driver.next_id == self.log.next
        self.model.check(self.members, self.driver.next_id)
        if not self.kind.is_broadcast and not any(member.is_suspended for member in self.members):
            unsettled = (member.client.channel.statistics().unsettled for member in self.members)
            assert self.driver.statistics().unsettled == sum(unsettled)
        for member in self.members:
            assert member.client.channel.granted() == Granted(member.window, member.count)
            assert member.client.channel.settles == member.settles
        if all(member.is_held or member.is_cancelled for member in self.members):
            assert not self.driver.has_taker()

    def possible(self) -> Iterator[Step]:
        """Yield the possible steps, and those that move messages more often."""
        if self.pending is None:
            yield from [Step("publish", self.publish)] * 3
        if len(self.members) < 4:
            yield from [Step("open", self.open)] * (3 if len(self.members) < 2 else 1)
        yield Step("wait", self.wait)
        yield Step("housekeeping", self.keep_house)
        for member in self.members:
            yield from self._possible(member)
            if member.is_suspended:
                yield from [Step(f"give back {member.name}", partial(self.give_back, member))] * 2
        if len(self.members) > 1:
            yield Step("close together", self.close_together)
        if self.members:
            yield Step("suspend", self.suspend)
        if self.draw(st.integers(0, 7), label="seldom") == 7:
            yield Step("delete", self.delete)
            if self.restarts:
                yield from [Step("restart", self.restart), Step("kill", self.kill)]

    def _possible(self, member: Member) -> Iterator[Step]:
        def step(label: str, function: Callable[[Member], Awaitable[None]]) -> Step:
            return Step(f"{label} {member.name}", partial(function, member))

        if member.taken:
            yield from [step("written", self.written)] * 4
        elif member.piece is not None:
            yield from [step("piece written", self.piece_written)] * 4
        elif member.begun is not None and member.client.channel.rest is not RemainderHolder.GIVEN_AGAIN:
            yield from [step("rest written", self.rest_written)] * 3
        elif member.client.channel.ready() or member.begun is not None:
            yield from [step("take", self.take)] * 5
        yield step("hold or release", self.hold_or_release)
        yield step("close", self.close)
        if not member.is_finished:
            yield step("finish", self.finish)
        if not member.is_cancelled:
            yield step("cancel", self.cancel)
        yield from [step("grant", self.grant)] * 2
        yield step("drain", self.drain)
        if member.settles:
            yield from [step("settle", self.settle)] * 3

    # -- in ------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        count = self.draw(st.integers(1, 6), label="messages")
        bodies = []
        for _ in range(count):
            size = self.draw(st.sampled_from(SIZES), label="size")
            mark = b"%d " % self.posted
            self.posted += 1
            bodies.append((mark * (size // len(mark) + 1))[:size])
        heads = (
            [HEAD[: 4 * (index % 2)] for index in range(count)]
            if self.draw(st.booleans(), label="heads")
            else []
        )
        origin = st.none() | st.tuples(st.sampled_from([b"p", b"q"]), st.integers(0, 9))
        origins = self.draw(st.just([]) | st.lists(origin, min_size=count, max_size=count), label="origins")
        self.log.add(bodies, heads, origins)
        self.nursery.start_soon(self._post, Bodies(bodies), heads, origins)
        await quiet()

    async def _post(self, *post: object) -> None:
        with trio.CancelScope() as self.pending:
            driver = self.driver
            try:
                confirmation = await driver.post(*post)  # type: ignore[arg-type]  # `start_soon` passes objects
            except Refused as refused:
                if not driver.deleted or refused.reason is not Reason.DELETED:
                    raise
            else:
                if not self.kind.is_persistent:
                    assert confirmation.settled
                settled = trio.Event()
                confirmation.listen(settled.set)
                await settled.wait()
                failure = confirmation.failure
                assert failure is None or (driver.deleted and failure.reason is Reason.DELETED)
        self.pending = None

    # -- out -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        replay, position = self._replay()
        client = Client(self.driver, replay)
        self.opened += 1
        member = Member(client, self.opened, position=position)
        self.members.append(member)
        if self.draw(st.booleans(), label="credit"):
            await self.grant(member)

    def _replay(self) -> tuple[Replay, int]:
        current = self.driver.next_id
        if not (self.kind.is_broadcast and self.kind.is_persistent):
            return FromCurrent(), current
        messages = st.integers(1, current).map(FromMessage)
        replay: Replay = self.draw(
            st.sampled_from([FromBeginning(), FromCurrent()]) | messages, label="replay"
        )
        match replay:
            case FromBeginning():
                return replay, 1
            case FromCurrent():
                return replay, current
            case FromMessage(first):
                return replay, first
            case other:
                assert_never(other)

    async def take(self, member: Member) -> None:
        with trio.fail_after(60):
            taken = await member.client.channel.take()
        match taken:
            case TakenMessages():
                assert member.begun is None
                got = messages_of(taken, self.driver.topic.id)
                assert got
                assert member.count is None or len(got) <= member.count
                self.model.gives(member, got)
            case Piece():
                self._take_piece(member, taken)
            case Unavailable():
                self._gap(member, taken)
            case None:
                assert not member.client.channel.ready()

    def _take_piece(self, member: Member, piece: Piece) -> None:
        assert piece.topic == self.driver.topic.id
        if member.begun is None:
            got = replace(self.log.messages[piece.message], deliveries=piece.deliveries)
            assert member.count is None or member.count
            self.model.gives(member, [got])
            member.taken.clear()
            member.begun = got, 0
        got, begin = member.begun
        assert piece.deliveries == got.deliveries
        assert (piece.message, piece.head, piece.size, piece.begin) == (
            got.id,
            got.head,
            len(got.body),
            begin,
        )
        assert piece.octets == got.body[begin : begin + len(piece.octets)]
        assert piece.octets or begin == piece.size
        member.piece = piece

    def _gap(self, member: Member, gone: Unavailable) -> None:
        """Check that only a transient broadcast topic loses messages, and none that its memory has
        room for.
        """
        assert self.kind.is_broadcast
        assert not self.kind.is_persistent
        assert (gone.first, gone.reason) == (member.position, "the subscriber was too slow")
        assert gone.first <= gone.last < self.driver.next_id
        assert gone.last + 1 == self.driver.info().first  # it goes on with the oldest that is kept
        assert self.log.octets_from(gone.first) > 7 * MEMORY // 32 * 7 // 8
        member.position = gone.last + 1

    async def written(self, member: Member) -> None:
        taken, member.taken = member.taken, []
        count = self.draw(st.just(len(taken)) | st.integers(0, len(taken)), label="count")
        begun = None
        if count < len(taken) and self.draw(st.booleans(), label="begun"):
            begun = self.draw(st.integers(0, max(0, len(taken[count].body) - 1)), label="octets")
            member.begun = taken[count], begun
        self.model.left(member, taken, count, begun=begun is not None)
        member.delivered(count)
        member.client.channel.written(count, begun)

    async def piece_written(self, member: Member) -> None:
        piece, member.piece = member.piece, None
        assert piece is not None
        assert member.begun is not None
        got, _ = member.begun
        octets = self.draw(st.just(len(piece.octets)) | st.integers(0, len(piece.octets)), label="octets")
        end = piece.begin + octets
        member.begun = got, end
        if end == piece.size:
            self._whole(member)
        elif end or self.draw(st.booleans(), label="opening"):
            member.client.channel.written(0, end)
        else:
            member.begun = None
            self.model.left(member, [got], 0)
            member.client.channel.written(0)

    async def rest_written(self, member: Member) -> None:
        """Send the rest of a message of which the terminal has sent a part."""
        self._whole(member)

    def _whole(self, member: Member) -> None:
        assert member.begun is not None
        (got, _), member.begun = member.begun, None
        self.model.left(member, [got], 1)
        member.delivered(1)
        member.client.channel.written(1)

    async def hold_or_release(self, member: Member) -> None:
        if member.is_held:
            member.client.channel.release()
        else:
            member.client.channel.hold()
            if isinstance(self.model, RoundRobin):
                self.model.returns()
        member.is_held = not member.is_held
        member.is_suspended = False

    async def suspend(self) -> None:
        """Suspend some channels of a connection whose client takes nothing: they give back one by one."""
        count = self.draw(st.integers(1, len(self.members)), label="channels")
        for member in self.draw(st.permutations(self.members), label="order")[:count]:
            member.client.channel.suspend()
            member.is_held = member.is_suspended = True

    async def give_back(self, member: Member) -> None:
        member.client.channel.give_back()
        member.is_suspended = False
        if isinstance(self.model, RoundRobin):
            self.model.returns()

    async def finish(self, member: Member) -> None:
        member.client.channel.finish()
        member.is_finished = True
        member.end = min(member.end, self.driver.next_id)

    async def close(self, member: Member) -> None:
        member.client.close()
        assert member.client.channel.rest is RemainderHolder.HELD
        if isinstance(self.model, RoundRobin):
            self.model.closed(member)
        self.members.remove(member)
        if self.draw(st.booleans(), label="written after the end"):
            member.client.channel.written(len(member.taken))

    async def close_together(self) -> None:
        """Close some channels of a connection that ends. None of them gets the messages of another one, and
        others get them when all are closed.
        """
        count = self.draw(st.integers(2, len(self.members)), label="channels")
        closing = self.draw(st.permutations(self.members), label="order")[:count]
        for member in closing:
            member.client.channel.retire()
        idle = [member for member in closing if not member.client.channel.ready()]
        for member in closing:
            await quiet()
            if isinstance(self.model, RoundRobin):
                assert not any(each.client.channel.ready() for each in idle)
            member.client.close()
        for member in closing:
            if isinstance(self.model, RoundRobin):
                self.model.closed(member)
            self.members.remove(member)

    async def grant(self, member: Member) -> None:
        credit = self.draw(st.sampled_from(CreditKind), label="kind")
        n = self.draw(st.integers(0, 5), label="credit")
        match credit:
            case CreditKind.WINDOW:
                if isinstance(self.model, Broadcast) and member.window is None:
                    self.model.grants_window(member)
                member.most = max(n, FOREVER if member.window is None else member.most)
                member.window = n
                member.settles = True
            case CreditKind.COUNT:
                self._count(member, n)
                member.is_draining = False
            case other:
                assert_never(other)
        member.client.channel.grant(n, credit)

    def _count(self, member: Member, n: int) -> None:
        member.count = n
        if isinstance(self.model, RoundRobin):
            member.settles = True
            self.model.returns()

    async def drain(self, member: Member) -> None:
        if member.count is None:
            self._count(member, 0)
        member.is_draining = True

        def drained(unused: int) -> None:
            assert member.is_draining
            assert not member.unwritten
            assert unused == member.count
            member.count = 0
            member.is_draining = False

        member.client.channel.drain(drained)

    async def cancel(self, member: Member) -> None:
        member.is_cancelled = True
        if isinstance(self.model, RoundRobin):
            member.end = 0
            self.model.returns()
        else:
            member.end = min(member.end, member.position - len(member.unwritten))
        member.client.channel.cancel()

    async def settle(self, member: Member) -> None:
        """Settle a range that has messages of this member, and of others, and perhaps some that are done."""
        outcome = self.draw(st.sampled_from(OUTCOMES), label="outcome")
        if isinstance(self.model, RoundRobin):
            mine = set(self.model.has(member))
            known = self.model.done | self.model.owners.keys()
        else:
            mine = set(member.unsettled)
            known = set(range(1, self.log.next))
        if isinstance(self.model, RoundRobin) and not isinstance(outcome, Accepted | Rejected):
            mine -= set(member.unwritten)
            known -= set(member.unwritten)
        starts = [*sorted(mine), *sorted(known)[-3:], self.log.next]
        first = self.draw(st.sampled_from(starts), label="message")
        step = self.draw(st.integers(1, 3), label="step")
        most = self.draw(st.integers(1, 9), label="most")
        ids = range(first, first + step, step)
        while len(ids) < most and ids.stop in known:
            ids = range(first, ids.stop + step, step)
        settled = sorted(mine & set(ids))
        if isinstance(self.model, RoundRobin):
            for message in settled:
                self.model.settle(member, message, outcome)
        else:
            member.unsettled -= set(settled)
        assert member.client.channel.settle(ids, outcome) == len(settled)

    # -- the rest ------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Let time pass: a client without a write meanwhile is slow."""
        self.clock.jump(1)

    async def keep_house(self) -> None:
        if self.driver.writer is not None:
            await self.drivers.save_positions()
            if isinstance(self.model, RoundRobin):
                self.model.save()
            await tidy(self.driver, self.driver.writer)

    async def delete(self) -> None:
        await self.drivers.catalogue.delete(b"t")
        await quiet()
        assert self.pending is None
        for member in self.members:
            assert member.client.ends == [EndReason.DELETED]
        assert self.drivers.memory.statistics() == NOTHING
        self.members.clear()
        self.forget_all()
        self.driver = await self.drivers.topic(self.kind)

    async def restart(self) -> Turn:
        self._stop()
        await quiet()
        for member in self.members:
            member.client.close()
        await self.drivers.save_positions()
        unused = self.drivers.catalogue.release_ids()
        await trio.to_thread.run_sync(self.drivers.store.catalogue.release, unused)
        return self._started_again(Turn.CLEAN)

    async def kill(self) -> Turn:
        self._stop()
        await quiet()
        return self._started_again(Turn.KILLED)

    def _stop(self) -> None:
        self.restarts -= 1
        if self.pending is not None:
            self.pending.cancel()

    def _started_again(self, turn: Turn) -> Turn:
        if not self.kind.is_persistent:
            self.log.next = self.driver.next_id
        if isinstance(self.model, RoundRobin):
            if turn is Turn.KILLED:
                self.model.done &= self.model.durable
                self.model.deliveries = dict(self.model.durable_deliveries)
            else:
                self.model.deliveries = self.model.lost()
            self.model.owners.clear()
            self.model.unseen.clear()
            self.model.late = set(self.log.messages)
        return turn

    async def end(self) -> None:
        """Check that one more subscriber still gets every message that is kept."""
        for member in list(self.members):
            await self.close(member)
        replay = FromBeginning() if self.kind.is_broadcast and self.kind.is_persistent else FromCurrent()
        last = Client(self.driver, replay)
        await last.read()
        while self.pending is not None:
            self.clock.jump(1)
            await last.read()
        assert self.driver.next_id == self.log.next
        if isinstance(self.model, RoundRobin):
            assert sorted(last.ids) == sorted(self.log.messages.keys() - self.model.done)
            assert self.driver.info().messages == 0
        elif self.kind.is_persistent:
            assert last.ids == sorted(self.log.messages)
        assert all(got == self.log.messages[got.id] for got in last.got)
        last.close()
        await quiet()
        assert self.drivers.memory.statistics() == NOTHING
        await self.drivers.catalogue.delete(b"t")


@of_kinds()
def test_drivers_behave_as_the_model(stores: SharedExampleStore, kind: Kind) -> None:
    @settings(max_examples=20, phases=set(Phase) - {Phase.explain})
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        clock = trio.testing.MockClock()
        trio.run(Machine(kind, data, stores, clock).run, clock=clock)

    compare()
