"""The bindings that a message matches. The expected answers are RabbitMQ's."""

from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.reasons import Reason, Refused
from omq.exchanges.matching import NO_HEADERS, Index, TopicIndex, headers_of, index_of
from omq.exchanges.types import Binding, Destination, DestinationKind, ExchangeType, binding
from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    NumberType,
    Table,
    Value,
    Void,
)


def bound(name: str, key: str = "", arguments: Table | None = None) -> Binding:
    """Return a binding of the queue with this name."""
    return binding(
        b"e", Destination(DestinationKind.QUEUE, name.encode()), key.encode(), arguments or Table()
    )


def queues(index: Index, *keys: str, headers: Table | None = None) -> set[str]:
    """Return the queues that get a message."""
    values = NO_HEADERS if headers is None else headers_of(headers)
    found = index.destinations([key.encode() for key in keys], values)
    return {each.name.decode() for each in found if each is not None}


# -- direct and fanout --------------------------------------------------------------------------------------


def test_direct_matches_equal_keys() -> None:
    index = index_of(ExchangeType.DIRECT)
    index.add(bound("one", "a"))
    index.add(bound("two", "a"))
    index.add(bound("none", ""))
    assert queues(index, "a") == {"one", "two"}
    assert queues(index, "") == {"none"}
    assert queues(index, "a.b") == set()
    assert queues(index, "", "a") == {"none", "one", "two"}


@pytest.mark.parametrize("kind", [ExchangeType.DIRECT, ExchangeType.FANOUT, ExchangeType.TOPIC])
def test_a_queue_stays_bound_until_its_last_binding_is_removed(kind: ExchangeType) -> None:
    index = index_of(kind)
    first, second = bound("q", "k"), bound("q", "k", Table(((b"a", Void()),)))
    index.add(first)
    index.add(second)
    index.remove(first)
    assert queues(index, "k") == {"q"}
    index.remove(second)
    assert queues(index, "k") == set()


def test_fanout_ignores_keys() -> None:
    index = index_of(ExchangeType.FANOUT)
    index.add(bound("one", "a"))
    index.add(bound("two", "b"))
    assert queues(index, "anything") == {"one", "two"}


# -- patterns -----------------------------------------------------------------------------------------------

KEYS = ("", "a", "a.b", "a.b.c", "b", "a..b", ".", "a.b.b")

MATCHED = {
    "#": ["", "a", "a.b", "a.b.c", "b", "a..b", ".", "a.b.b"],
    "*": ["a", "b"],
    "a.*": ["a.b"],
    "a.#": ["a", "a.b", "a.b.c", "a..b", "a.b.b"],
    "#.b": ["a.b", "b", "a..b", "a.b.b"],
    "*.*": ["a.b", "."],
    "a.b": ["a.b"],
    "a.#.b": ["a.b", "a..b", "a.b.b"],
    "": [""],
    "a..b": ["a..b"],
    "*.b.#": ["a.b", "a.b.c", "a.b.b"],
}
"""The keys that RabbitMQ 3.10 matches with each pattern."""


@pytest.mark.parametrize("pattern", MATCHED)
def test_patterns_match_the_keys_that_rabbitmq_matches(pattern: str) -> None:
    index = index_of(ExchangeType.TOPIC)
    index.add(bound("q", pattern))
    assert [key for key in KEYS if queues(index, key)] == MATCHED[pattern]


def test_patterns_in_one_tree_match_as_each_alone() -> None:
    index = index_of(ExchangeType.TOPIC)
    for pattern in MATCHED:
        index.add(bound(pattern, pattern))
    for key in KEYS:
        assert queues(index, key) == {pattern for pattern, keys in MATCHED.items() if key in keys}


def naively(pattern: Sequence[str], key: Sequence[str]) -> bool:
    """Return the rules in their simplest form."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(naively(pattern[1:], key[taken:]) for taken in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and naively(pattern[1:], key[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


pattern_texts = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
key_texts = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)


many_texts = st.lists(st.sampled_from(["a", "b", "*", "#", "#", "#.a", "#.b"]), max_size=9).map(".".join)
long_keys = st.lists(st.sampled_from(["a", "b", "c"]), max_size=10).map(".".join)


@given(st.lists(many_texts, min_size=1, max_size=12), st.lists(long_keys, max_size=4), st.data())
def test_patterns_with_many_repetitions_follow_the_rules(
    patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    index = TopicIndex()
    bindings = [bound(f"{number}", pattern) for number, pattern in enumerate(patterns)]
    for each in bindings:
        index.add(each)
    left = set(bindings)
    for key in keys:
        expected = {
            each.destination.name.decode() for each in left if naively(words(each.key.decode()), words(key))
        }
        assert queues(index, key) == expected
        if left:
            gone = data.draw(st.sampled_from(sorted(left, key=lambda each: each.destination.name)))
            index.remove(gone)
            left.discard(gone)


@given(st.lists(many_texts, min_size=2, max_size=8), many_texts, long_keys, st.integers(0, 30))
def test_a_change_meanwhile_takes_no_other_pattern_away(
    patterns: list[str], other: str, key: str, steps: int
) -> None:
    index = TopicIndex()
    bindings = [bound(f"{number}", pattern) for number, pattern in enumerate(patterns)]
    for each in bindings:
        index.add(each)
    matching = index.destinations([key.encode()], NO_HEADERS)
    found = list(islice(matching, steps))
    index.remove(bindings[0])
    index.add(bound("other", other))
    found += matching
    names = {each.name.decode() for each in found if each is not None}
    assert names >= {
        each.destination.name.decode()
        for each in bindings[1:]
        if naively(words(each.key.decode()), words(key))
    }


@pytest.mark.parametrize("steps", range(12))
def test_a_pattern_that_goes_meanwhile_leaves_those_beside_it(steps: int) -> None:
    index = TopicIndex()
    bindings = [bound(word, f"#.{word}.#.{word}.#") for word in ("a", "b", "c")]
    for each in bindings:
        index.add(each)
    matching = index.destinations([b"a.b.c.b.c"], NO_HEADERS)
    found = list(islice(matching, steps))
    index.remove(bindings[0])
    found += matching
    assert {each.name for each in found if each is not None} == {b"b", b"c"}


def test_the_work_for_a_key_grows_with_its_words_and_not_with_their_square() -> None:
    def work(count: int) -> int:
        index = TopicIndex()
        for number in range(50):
            index.add(bound("q", f"{'*.' * (number % 5)}#.{number % 7}" + ".#.a" * count + f".#.{number}"))
        key = ".".join(["a"] * 5 + [str(number) for number in range(7)] + ["a"] * count)
        return sum(1 for _ in index.destinations([key.encode()], NO_HEADERS))

    # With every `#` that was reached, it would be three times as much for twice as many words.
    assert work(80) < 2.5 * work(40)


@given(st.lists(pattern_texts, max_size=8), key_texts, st.data())
def test_a_tree_of_patterns_follows_the_rules(patterns: list[str], key: str, data: st.DataObject) -> None:
    index = index_of(ExchangeType.TOPIC)
    bindings = [bound(f"{number}", pattern) for number, pattern in enumerate(patterns)]
    for each in bindings:
        index.add(each)
    removed = {each for each in bindings if data.draw(st.booleans())}
    for each in removed:
        index.remove(each)
    expected = {
        each.destination.name.decode()
        for each in bindings
        if each not in removed and naively(words(each.key.decode()), words(key))
    }
    assert queues(index, key) == expected
    for each in set(bindings) - removed:
        index.remove(each)
    assert queues(index, key) == set()


def test_many_wildcards_do_not_multiply_the_work() -> None:
    index = index_of(ExchangeType.TOPIC)
    assert isinstance(index, TopicIndex)
    index.add(bound("q", ".".join(["#", "a"] * 60)))
    # A matcher that tries each number of words for each `#` would not end.
    assert queues(index, ".".join(["a"] * 100 + ["b"])) == set()
    assert queues(index, ".".join(["a"] * 100)) == {"q"}


# -- headers ------------------------------------------------------------------------------------------------


def table(**values: object) -> Table:
    """Return a table of ordinary values."""
    return Table(tuple((name.replace("_", "-").encode(), typed(value)) for name, value in values.items()))


def typed(value: object) -> Value:
    match value:
        case None:
            return Void()
        case bool():
            return Boolean(value)
        case int():
            return Number(NumberType.INT32, value)
        case float():
            return Number(NumberType.FLOAT64, value)
        case str():
            return LongString(value.encode())
        case Number() | Decimal() | ByteArray() | Array() | Table():
            return value
    raise TypeError(value)


HEADERS = (
    table(a=1, b="s"),
    table(a=1),
    table(b="s"),
    table(a=Number(NumberType.INT64, 1)),
    table(a="1"),
    table(),
    table(x_a=1),
    table(a=1.0),
)


@pytest.mark.parametrize(
    ("arguments", "matched"),
    [
        (table(x_match="all", a=1, b="s"), [0]),
        (table(x_match="any", a=1, b="s"), [0, 1, 2, 3, 7]),
        (table(a=1), [0, 1, 3, 7]),
        (table(), [0, 1, 2, 3, 4, 5, 6, 7]),
        (table(x_match="any"), []),
        (table(a=None), [0, 1, 3, 4, 7]),
        (table(x_match="all-with-x", x_a=1), [6]),
        (table(x_match="any-with-x", x_a=1), [6]),
        (table(x_match="all", x_a=1), [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_headers_match_as_in_rabbitmq(arguments: Table, matched: list[int]) -> None:
    index = index_of(ExchangeType.HEADERS)
    index.add(bound("q", "", arguments))
    assert [at for at, each in enumerate(HEADERS) if queues(index, headers=each)] == matched


@pytest.mark.parametrize(
    ("wanted", "found", "equal"),
    [
        (Number(NumberType.UINT8, 2), Decimal(1, 20), True),
        (Decimal(2, 150), 1.5, True),
        (1, True, False),
        (1, Number(NumberType.TIMESTAMP, 1), False),
        ("s", ByteArray(b"s"), False),
        ("s", LongString(b"s\0").octets.decode(), True),  # OpenAMQ's strings end so
        (
            Array((LongString(b"a"), Number(NumberType.INT8, 1))),
            Array((LongString(b"a"), Decimal(0, 1))),
            True,
        ),
        (Array((LongString(b"a"),)), Array(()), False),
        (Table(((b"a", Void()), (b"b", Void()))), Table(((b"b", Void()), (b"a", Void()))), True),
        (Table(((b"a", Void()),)), Table(((b"a", Boolean(False)),)), False),
    ],
)
def test_values_are_compared_by_kind(wanted: object, found: object, equal: bool) -> None:
    index = index_of(ExchangeType.HEADERS)
    index.add(bound("q", "", table(h=wanted)))
    assert bool(queues(index, headers=table(h=found))) is equal


def test_the_first_of_equal_names_counts() -> None:
    index = index_of(ExchangeType.HEADERS)
    index.add(bound("q", "", table(a=1)))
    twice = Table(((b"a", typed(1)), (b"a", typed(2))))
    assert queues(index, headers=twice) == {"q"}
    assert queues(index, headers=Table(twice.entries[::-1])) == set()


@pytest.mark.parametrize("value", [LongString(b"some"), Number(NumberType.INT32, 1)])
def test_other_rules_are_refused(value: Value) -> None:
    index = index_of(ExchangeType.HEADERS)
    with pytest.raises(Refused, match="expected one of all, any, all-with-x, any-with-x") as caught:
        index.add(bound("q", "", Table(((b"x-match", value),))))
    assert caught.value.reason is Reason.INVALID
    assert queues(index, headers=table()) == set()


def test_a_rule_with_openamqs_end_is_understood() -> None:
    index = index_of(ExchangeType.HEADERS)
    index.add(bound("q", "", Table(((b"x-match", LongString(b"any\0")),))))
    assert queues(index, headers=table()) == set()


names = st.sampled_from(["a", "b", "x-c"])
values = st.sampled_from([None, 1, 2, "1"])
rules = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def meets(rule: str | None, wanted: dict[str, object], found: dict[str, object]) -> bool:
    """Return the rules in their simplest form."""
    if rule is None or not rule.endswith("-with-x"):
        wanted = {name: value for name, value in wanted.items() if not name.startswith("x-")}
    matches = [name in found and (value is None or found[name] == value) for name, value in wanted.items()]
    return any(matches) if rule is not None and rule.startswith("any") else all(matches)


@given(
    st.lists(st.tuples(rules, st.dictionaries(names, values)), max_size=6),
    st.dictionaries(names, values),
    st.data(),
)
def test_an_index_of_headers_follows_the_rules(
    wanted: list[tuple[str | None, dict[str, object]]], found: dict[str, object], data: st.DataObject
) -> None:
    index = index_of(ExchangeType.HEADERS)
    bindings = []
    for number, (rule, headers) in enumerate(wanted):
        entries = dict(headers) if rule is None else {"x-match": rule, **headers}
        arguments = Table(tuple((name.encode(), typed(value)) for name, value in entries.items()))
        bindings.append(bound(f"{number}", "", arguments))
        index.add(bindings[-1])
    removed = {number for number in range(len(bindings)) if data.draw(st.booleans())}
    for number in removed:
        index.remove(bindings[number])
    expected = {
        f"{number}"
        for number, (rule, headers) in enumerate(wanted)
        if number not in removed and meets(rule, headers, found)
    }
    message = Table(tuple((name.encode(), typed(value)) for name, value in found.items()))
    assert queues(index, headers=message) == expected
