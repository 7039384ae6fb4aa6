"""The order of admission when there is room: publishers in their order, and topics that share memory in
turns.
"""

import pytest

from omq.drivers.publisher_queue import PublisherQueue, PublisherQueues, RoomAnswer, WaitingPublisher


class Memory:
    """Memory that several topics share; topics with an idle worker may use more of it."""

    def __init__(self, limit: int, beyond: int = 0) -> None:
        self.limit = limit
        self.beyond = beyond
        self.used = 0
        self.lines = PublisherQueues()
        self.asked: list[tuple[str, int, bool]] = []
        """Topic, octets and whether it was its turn, in the order in which topics asked for memory."""
        self.admitted: list[str] = []

    def topic(self, name: str, most: int = 1 << 30, *, idle: bool = False) -> "Topic":
        return Topic(self, name, most, idle)

    def free(self, octets: int) -> None:
        """Free memory that was used for something else."""
        self.used -= octets
        self.lines.look()


class Topic:
    def __init__(self, memory: Memory, name: str, most: int, idle: bool) -> None:
        self.memory = memory
        self.name = name
        self.most = most
        self.idle = idle
        self.held = 0
        self.publisher_queue = PublisherQueue(self.take, self.give, memory.lines)

    def take(self, octets: int, in_turn: bool) -> RoomAnswer:
        memory = self.memory
        memory.asked.append((self.name, octets, in_turn))
        if self.held and self.held + octets > self.most:
            return RoomAnswer.TOPIC_FULL
        limit = memory.limit + (memory.beyond if self.idle else 0)
        if memory.used + octets > limit or (memory.lines and not in_turn):
            return RoomAnswer.ALL_FULL if self.idle else RoomAnswer.MEMORY_FULL
        self.held += octets
        memory.used += octets
        return RoomAnswer.TAKEN

    def give(self, octets: int) -> None:
        self.held -= octets
        self.memory.used -= octets
        self.publisher_queue.freed()

    def enqueue(self, name: str, octets: int = 1) -> WaitingPublisher:
        return self.publisher_queue.enqueue(octets, lambda: self.memory.admitted.append(name))

    def names(self, *names: str) -> list[WaitingPublisher]:
        return [self.enqueue(name) for name in names]


def test_publishers_of_a_topic_are_admitted_in_their_order() -> None:
    memory = Memory(100)
    topic = memory.topic("t", 3)
    assert topic.publisher_queue.try_enter(2)
    assert not topic.publisher_queue.try_enter(2)
    first, second, third = topic.enqueue("first", 2), topic.enqueue("second", 1), topic.enqueue("third", 1)
    assert (
        topic.publisher_queue.waiting,
        topic.publisher_queue.is_wanted,
        topic.publisher_queue.admitted,
    ) == (3, True, 0)
    # There would be room for it, but others came first.
    assert not topic.publisher_queue.try_enter(1)
    topic.give(1)
    assert memory.admitted == ["first"]
    assert (first.is_admitted, second.is_admitted, topic.publisher_queue.admitted) == (True, False, 1)
    topic.publisher_queue.go_on(first)
    assert topic.publisher_queue.admitted == 0
    topic.give(2)
    assert memory.admitted == ["first", "second", "third"]
    assert (
        topic.publisher_queue.waiting,
        topic.publisher_queue.is_wanted,
        topic.publisher_queue.admitted,
    ) == (0, False, 2)
    assert third.is_admitted
    assert memory.lines.is_empty()
    with pytest.raises(AssertionError):
        topic.publisher_queue.go_on(WaitingPublisher(1, lambda: None))


def test_an_publisher_admitted_at_once_is_not_called() -> None:
    memory = Memory(100)
    topic = memory.topic("t")
    waiting_publisher = topic.enqueue("it")
    assert waiting_publisher.is_admitted
    assert memory.admitted == []
    assert topic.publisher_queue.waiting == 0


def test_topics_take_turns_with_one_publisher_each() -> None:
    memory = Memory(2)
    memory.used = 2
    one, two = memory.topic("one"), memory.topic("two")
    one.names("1a", "1b", "1c")
    two.names("2a", "2b", "2c")
    assert memory.lines.has(one.publisher_queue)
    assert memory.lines.has(two.publisher_queue)
    assert not memory.lines.is_empty()
    memory.limit = 5
    memory.lines.look()
    assert memory.admitted == ["1a", "2a", "1b"]
    memory.limit = 6
    memory.lines.look()
    assert memory.admitted == ["1a", "2a", "1b", "2b"]  # it was its turn
    memory.limit = 100
    memory.lines.look()
    assert memory.admitted == ["1a", "2a", "1b", "2b", "1c", "2c"]
    assert memory.lines.is_empty()
    assert not memory.lines.has(one.publisher_queue)


def test_the_first_publisher_that_does_not_fit_lets_no_other_pass() -> None:
    memory = Memory(10)
    memory.used = 10
    large, small = memory.topic("large"), memory.topic("small")
    large.enqueue("large", 5)
    small.enqueue("small", 1)
    memory.free(4)
    assert memory.admitted == []
    memory.free(1)
    assert memory.admitted == ["large"]
    memory.free(1)
    assert memory.admitted == ["large", "small"]


def test_topics_with_an_idle_worker_come_first() -> None:
    memory = Memory(10, beyond=10)
    memory.used = 20
    busy, idle, other = memory.topic("busy"), memory.topic("idle", idle=True), memory.topic("o", idle=True)
    busy.names("busy 1", "busy 2")
    idle.names("idle 1", "idle 2")
    other.names("other 1")
    memory.free(3)
    assert memory.admitted == ["idle 1", "other 1", "idle 2"]
    memory.free(10)
    assert memory.admitted[3:] == []
    memory.free(1)
    assert memory.admitted[3:] == ["busy 1"]
    # A worker of it becomes idle, or is not idle any more: it changes the line, and keeps one place only.
    memory.used = 20
    idle.names("idle 3")
    memory.lines.wait(busy.publisher_queue, RoomAnswer.ALL_FULL)
    busy.idle, idle.idle = True, False
    memory.lines.wait(idle.publisher_queue, RoomAnswer.MEMORY_FULL)
    memory.free(1)
    assert memory.admitted[4:] == ["busy 2"]
    assert not memory.lines.has(busy.publisher_queue)
    assert memory.lines.has(idle.publisher_queue)
    memory.free(11)
    assert memory.admitted[5:] == ["idle 3"]
    assert memory.lines.is_empty()


def test_a_topic_that_waits_again_keeps_its_place() -> None:
    memory = Memory(1)
    memory.used = 1
    one, two = memory.topic("one"), memory.topic("two")
    one.names("1a")
    two.names("2a")
    memory.lines.wait(one.publisher_queue, RoomAnswer.MEMORY_FULL)
    memory.lines.look()  # asks the first, and no other
    assert [name for name, _, _ in memory.asked[-1:]] == ["one"]
    memory.free(1)
    assert memory.admitted == ["1a"]


def test_a_topic_that_holds_less_is_asked_in_its_turn() -> None:
    memory = Memory(4)
    full, waiting = memory.topic("full", 2), memory.topic("waiting")
    assert full.publisher_queue.try_enter(2)
    assert waiting.publisher_queue.try_enter(2)
    full.names("full 1", "full 2")
    waiting.names("waiting 1", "waiting 2")
    assert not memory.lines.has(full.publisher_queue)  # it waits for itself, and not for memory
    assert memory.lines.has(waiting.publisher_queue)
    memory.asked.clear()
    full.give(1)
    # First who waits for memory; then the one that gave, behind it.
    assert memory.asked[0] == ("waiting", 1, True)
    assert memory.admitted == ["waiting 1"]
    assert memory.lines.has(full.publisher_queue)
    full.give(1)
    assert memory.admitted == ["waiting 1", "full 1"]
    assert ("full", 1, True) in memory.asked
    full.give(1)
    assert memory.admitted == ["waiting 1", "full 1", "waiting 2"]
    memory.free(1)
    assert memory.admitted == ["waiting 1", "full 1", "waiting 2", "full 2"]


def test_an_idle_topic_joins_the_other_line_only_if_it_is_in_none() -> None:
    memory = Memory(2, beyond=2)
    memory.used = 4
    idle = memory.topic("idle", idle=True)
    idle.names("idle 1")
    memory.asked.clear()
    memory.lines.join(idle.publisher_queue)
    memory.lines.look()
    assert memory.asked == [("idle", 1, True)]  # once, in the line in which it was
    memory.lines.leave(idle.publisher_queue)
    assert memory.lines.is_empty()
    memory.lines.join(idle.publisher_queue)
    assert memory.lines.has(idle.publisher_queue)


@pytest.mark.parametrize(("leaving", "left"), [(0, ["second", "third"]), (1, ["third"]), (2, ["second"])])
def test_an_publisher_that_leaves_lets_the_others_pass(leaving: int, left: list[str]) -> None:
    memory = Memory(10)
    topic = memory.topic("t", 10)
    assert topic.publisher_queue.try_enter(8)
    publishers = [topic.enqueue("first", 5), topic.enqueue("second", 2), topic.enqueue("third", 2)]
    topic.publisher_queue.leave(publishers[leaving])
    assert memory.admitted == (["second"] if leaving == 0 else [])
    topic.give(3)
    assert memory.admitted == (["second", "third"] if leaving == 0 else ["first"])
    topic.give(8 if leaving else 0)
    assert memory.admitted == ([] if leaving == 0 else ["first"]) + left


def test_an_admitted_publisher_that_leaves_gives_its_room_back() -> None:
    memory = Memory(10)
    topic = memory.topic("t", 2)
    assert topic.publisher_queue.try_enter(2)
    first, _ = topic.enqueue("first", 2), topic.enqueue("second", 2)
    topic.give(2)
    assert (memory.admitted, topic.publisher_queue.admitted, topic.held) == (["first"], 1, 2)
    topic.publisher_queue.leave(first)
    assert (memory.admitted, topic.publisher_queue.admitted, topic.held) == (["first", "second"], 1, 2)


def test_the_last_that_leaves_takes_its_topic_out_of_the_line() -> None:
    memory = Memory(2)
    memory.used = 2
    one, two = memory.topic("one"), memory.topic("two")
    large = one.enqueue("large", 2)
    two.enqueue("small", 1)
    memory.free(1)
    assert memory.admitted == []
    one.publisher_queue.leave(large)
    assert not memory.lines.has(one.publisher_queue)
    assert memory.admitted == ["small"]
    one.publisher_queue.leave(large)  # it may have been woken by the end of its topic
    assert memory.lines.is_empty()


def test_the_end_of_a_topic_wakes_all_its_publishers() -> None:
    memory = Memory(1)
    memory.used = 1
    gone, stays = memory.topic("gone"), memory.topic("stays")
    publishers = gone.names("1", "2", "3")
    stays.names("4")
    gone.publisher_queue.close()
    assert memory.admitted == ["1", "2", "3"]
    assert not any(waiting_publisher.is_admitted for waiting_publisher in publishers)
    assert (gone.publisher_queue.waiting, gone.publisher_queue.admitted) == (0, 0)
    assert not memory.lines.has(gone.publisher_queue)
    memory.free(1)
    assert memory.admitted == ["1", "2", "3", "4"]


def test_a_topic_may_leave_the_line_while_it_is_asked() -> None:
    """As when it is deleted by whom it has just admitted."""
    memory = Memory(1)
    memory.used = 1
    one, two = memory.topic("one"), memory.topic("two")
    one.publisher_queue.enqueue(1, one.publisher_queue.close)
    later: list[str] = []

    def appended() -> None:
        later.append("one again")

    one.publisher_queue.enqueue(1, appended)
    two.names("two")
    memory.limit = 10
    memory.lines.look()
    assert later == ["one again"]
    assert memory.admitted == ["two"]
    assert memory.lines.is_empty()
