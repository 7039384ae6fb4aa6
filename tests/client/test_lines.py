from hypothesis import given
from hypothesis import strategies as st

from omq.client.lines import publish_bodies, publish_line, publish_lines, publish_start
from omq.protocol.omq.commands import parse
from omq.protocol.omq.types import Publish

topics = st.one_of(st.sampled_from([b"prices", b"a b", b"#|", b"\xff"]), st.binary(min_size=1, max_size=20))
bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"#|", b"|#", b"a#b|c", b"#", b"|", b";", b"\\", b'"', b"\x7f", b"~!"]),
    st.text("ab #|\"\\;()'\t\n", max_size=12).map(str.encode),
)


@given(topics, bodies)
def test_a_line_is_read_back_as_it_was(topic: bytes, body: bytes) -> None:
    line = publish_line(publish_start(topic), body)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert parse(line[:-1]) == Publish(topic, body)


@given(st.lists(bodies, min_size=1, max_size=8))
def test_octets_without_a_meaning_stay_as_they_are(many: list[bytes]) -> None:
    plain = [body.translate(None, b'"\\\n') for body in many]
    lines = publish_bodies(publish_start(b"t"), plain)
    assert lines == b"".join(b'(Publish t "%s")\n' % body for body in plain)


@given(topics, st.lists(bodies, min_size=1, max_size=8))
def test_many_bodies_are_read_back_as_they_were(topic: bytes, many: list[bytes]) -> None:
    lines = publish_bodies(publish_start(topic), many)
    assert lines.endswith(b"\n")
    assert [parse(line) for line in lines[:-1].split(b"\n")] == [Publish(topic, body) for body in many]


@given(topics, st.lists(bodies.filter(lambda body: b"\n" not in body), min_size=1, max_size=8))
def test_each_line_of_a_text_is_a_message(topic: bytes, many: list[bytes]) -> None:
    lines = publish_lines(publish_start(topic), b"".join(body + b"\n" for body in many))
    assert [parse(line) for line in lines[:-1].split(b"\n")] == [Publish(topic, body) for body in many]
