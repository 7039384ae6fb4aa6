"""Ends of programs that use the synchronous client: each is a process of its own."""

import signal

import pytest
from interrupts import ALARM, Program

from omq.blocking import Client
from omq.client import FromBeginning

SECONDS = 60.0


def bodies(client: Client, topic: str, count: int) -> list[bytes]:
    with client.subscribe(topic, FromBeginning(), timeout=SECONDS) as messages:
        return [next(messages).body for _ in range(count)]


def test_a_program_ends_that_does_not_close_its_client(url: str, client: Client, topic: str) -> None:
    text = f"""
client.publish({topic!r}, b"x")
threading.Thread(target=client.subscribe({topic!r}).receive, daemon=True).start()
sink = client.sink({topic!r})
"""
    with Program(url, text) as program:
        assert program.end() == (0, "")
    assert bodies(client, topic, 1) == [b"x"]


def test_daemon_threads_that_use_a_client_end_silently(url: str, client: Client, topic: str) -> None:
    text = f"""
def ping():
    while True:
        client.ping()
threads = [
    threading.Thread(target=client.subscribe({topic!r}).receive, daemon=True),
    threading.Thread(target=ping, daemon=True),
]
for thread in threads:
    thread.start()
    at_last.append(lambda thread=thread: thread.join(1))
"""
    with Program(url, text) as program:
        assert program.end() == (0, "")


def test_what_a_program_does_at_its_end_is_told_that_its_client_was_closed(url: str, topic: str) -> None:
    text = f"""
sink = client.sink({topic!r})
def report(call):
    try:
        call()
    except Exception as error:
        print(error, flush=True)
at_last += [lambda: report(client.ping), lambda: report(sink.close)]
"""
    with Program(url, text) as program:
        assert program.end() == (0, "the client was closed\nthe client was closed\n")


def test_a_program_ends_by_an_exception(url: str, client: Client, topic: str) -> None:
    text = f"""
with client:
    client.publish({topic!r}, b"x")
    raise SystemExit(3)
"""
    with Program(url, text) as program:
        assert program.end() == (3, "")
    assert bodies(client, topic, 1) == [b"x"]


@pytest.mark.parametrize("call", ["messages.receive()", "next(messages)", "messages.receive(timeout=1000)"])
def test_ctrl_c_interrupts_a_call_and_the_client_goes_on(
    url: str, client: Client, topic: str, call: str
) -> None:
    text = f"""
messages = client.subscribe({topic!r})
try:
    print("waiting", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(messages.receive(timeout={SECONDS}).body, flush=True)
{call}
"""
    with Program(url, text) as program:
        assert program.line() == "waiting\n"
        program.interrupt()
        assert program.line() == "interrupted\n"
        client.publish(topic, b"later")
        assert program.line() == "b'later'\n"
        program.interrupt()
        status, output = program.end()
    assert status == -signal.SIGINT
    assert output.endswith("KeyboardInterrupt\n")


def test_ctrl_c_interrupts_connecting(url: str) -> None:
    text = """
import socket
silent = socket.create_server(("127.0.0.1", 0))
print("waiting", flush=True)
connect("omq://127.0.0.1:%d" % silent.getsockname()[1], connect_seconds=1000)
"""
    with Program(url, text) as program:
        assert program.line() == "waiting\n"
        program.interrupt()
        status, output = program.end()
    assert status == -signal.SIGINT
    assert output.endswith("KeyboardInterrupt\n")


def test_a_client_stays_with_its_process(url: str) -> None:
    text = """
child = os.fork()
if not child:
    try:
        client.topics()
    except RuntimeError as error:
        print(error, flush=True)
    sys.exit(4)  # the end of this process touches the client, too
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
client.topics()
"""
    expected = "this client belongs to the process that connected it: connect after a fork\n4\n"
    with Program(url, text) as program:
        assert program.end() == (0, expected)


def test_many_clients_end_with_the_program(url: str) -> None:
    with Program(url, "others = [connect(sys.argv[1]) for _ in range(20)]") as program:
        assert program.end() == (0, "")


def test_interrupts_at_any_moment_leave_the_client_usable(url: str) -> None:
    text = """
for microseconds in itertools.islice(itertools.cycle(range(20, 400)), 1500):
    interrupted(client.ping, microseconds)
print(client.ping() > 0, flush=True)
client.close()
"""
    with Program(url, ALARM + text) as program:
        assert program.end() == (0, "True\n")


def test_interrupts_at_any_moment_of_receive_lose_no_message(url: str, topic: str) -> None:
    text = f"""
messages = client.subscribe({topic!r})
for number, microseconds in enumerate(itertools.islice(itertools.cycle(range(2, 100)), 300)):
    interrupted(messages.receive, microseconds)
    client.publish({topic!r}, b"%d" % number)
    assert messages.receive(timeout={SECONDS / 2}).body == b"%d" % number
client.close()
"""
    with Program(url, ALARM + text) as program:
        assert program.end() == (0, "")


def test_a_forked_process_leaves_the_block_of_a_client(url: str, topic: str) -> None:
    text = f"""
with client, client.sink({topic!r}):
    if not os.fork():
        sys.exit(4)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    client.topics()
"""
    with Program(url, text) as program:
        assert program.end() == (0, "4\n")
