"""The deliveries that a session has sent, against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp_1_0 import serials
from omq.protocol.amqp_1_0.unsettled import UnsettledDeliveries

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("settle"), st.integers(-12, 3), st.integers(-2, 8)),
        st.tuples(st.just("take back"), st.integers(0, 4), st.just(False)),
        st.tuples(st.just("drop"), st.integers(0, 1), st.just(False)),
    ),
    max_size=40,
)


@given(ACTIONS, st.sampled_from([0, 7, serials.MODULUS - 6, serials.MODULUS // 2 - 3]))
def test_runs_are_settled_as_single_deliveries_would_be(
    actions: list[tuple[str, int, int]], first: int
) -> None:
    links = ["a", "b"]
    unsettled: UnsettledDeliveries[str] = UnsettledDeliveries(first)
    expected: dict[int, tuple[str, int]] = {}
    message = 100
    sent = 0  # since the last one that cannot be taken back: its peer may have settled it
    for step, (what, one, two) in enumerate(actions):
        match what:
            case "send":
                link, ids = links[step % 2], range(message, message + one * 2, 2)
                message += one * 2
                sent += one
                at = unsettled.add(link, ids, settled=bool(two))
                for index, number in enumerate(ids):
                    if not two:
                        expected[serials.add(at, index)] = (link, number)
            case "settle":
                sent = 0
                begin, count = serials.add(unsettled.next_id, one), two
                found = unsettled.settle(begin, serials.add(begin, count - 1))
                told = [(run.link, number) for run in found for number in run.ids]
                ids_told = [serials.add(begin, index) for index in range(max(count, 0))]
                assert told == [expected.pop(each) for each in ids_told if each in expected]
            case "take back":
                count = min(one, sent)
                unsettled.take_back(count)
                for index in range(count):
                    expected.pop(serials.add(unsettled.next_id, index), None)
                sent -= count
            case _:
                unsettled.drop(links[one])
                expected = {key: value for key, value in expected.items() if value[0] != links[one]}
        assert len(unsettled) == len(expected)


def test_differences_of_serial_numbers() -> None:
    assert serials.difference(2, serials.MODULUS - 1) == 3
    assert serials.difference(serials.MODULUS - 1, 2) == -3
    assert serials.add(serials.MODULUS - 1, 1) == 0
    assert serials.add(0, -1) == serials.MODULUS - 1
