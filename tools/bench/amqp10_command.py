"""`--amqp10`: omq beside a router as servers of AMQP 1.0, case by case."""

import argparse
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from amqp10_brokers import MISSING_EXAMPLES, build_clients, direct_seconds, processor_seconds
from amqp10_wire import DISPOSITION, FLOW, TRANSFER, Client, message
from brokers import Broker, Running
from report import print_conditions
from workers import BenchFailure

COUNT = 20_000
CREDIT = 100
CALLS = 2000
WARM_UP = 1000
LONG_MESSAGES, LONG_OCTETS = 6, 60 << 20
PART_OCTETS = 60_000
LEAST_SMALL = 20
"""The number of small messages without which there are no figures."""

SMALL_CREDIT = 1_000_000
SENT = struct.Struct(">d")
"""The time at which a small message was sent, which is its body."""

EPILOG = """\
cases of --amqp10 (CPU: processor time of the server for a message from end to end):
  direct, queue, multicast   proton's C send and receive, 20,000 messages after 1,000 that are not measured;
                             queue and multicast are transient
  stored                     the same through a stored queue
  notify                     the same into a stored queue; nobody reads
  settled                    20,000 settled messages to a receiver that gives credit for 100
  rpc                        2,000 calls one after another, through a reply address of the server's
  beside                     one small message every 2 ms, to a client that gets six stored messages of 60 MiB
                             over another link of the same session: the time until it is read
  no-server                  proton's C direct example at the same work without a server: what it costs a peer
"""

ADDRESSES = {
    "direct": "unicast.bench",
    "queue": "openstack.org/om/queue/bench",
    "multicast": "broadcast.bench",
    "stored": "openstack.org/om/notify/bench",
    "notify": "openstack.org/om/notify/bench",
}
CASES = (*ADDRESSES, "settled", "rpc", "beside", "no-server")
Figures = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """The settings that the cases need."""

    clients: dict[str, Path] | None
    """The programs of proton, if they can be built."""


def measure(case: str, running: Running, setting: Setting) -> Figures:
    """Run one case."""
    match case:
        case "settled":
            return _settled(running)
        case "rpc":
            return _calls(running)
        case "beside":
            return _beside(running)
        case _:
            if setting.clients is None:
                raise BenchFailure(MISSING_EXAMPLES)
            return _through(running, setting.clients, ADDRESSES[case], receives=case != "notify")


def _through(running: Running, clients: dict[str, Path], address: str, *, receives: bool) -> Figures:
    _send_through(running, clients, address, WARM_UP, receives=receives)
    return _send_through(running, clients, address, COUNT, receives=receives)


def _send_through(
    running: Running, clients: dict[str, Path], address: str, count: int, *, receives: bool
) -> Figures:
    arguments = ["127.0.0.1", str(running.port), address]
    started: list[subprocess.Popen[bytes]] = []
    cpu = processor_seconds(running.pid)
    begin = time.monotonic()
    for name in ("receive", "send") if receives else ("send",):
        command = [str(clients[name]), *arguments, str(count)]
        started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        if name == "receive":
            time.sleep(0.3)  # a message without a consumer would be released
            begin += 0.3
    try:
        for client in started:
            if client.wait(60):
                raise BenchFailure(f"a client ended with {client.returncode}")
    except subprocess.TimeoutExpired:
        raise BenchFailure("the clients did not end") from None
    finally:
        for client in started:
            client.kill()
            client.wait()
    seconds = time.monotonic() - begin
    cpu = processor_seconds(running.pid) - cpu
    return {"messages/s": count / seconds, "CPU us": cpu * 1e6 / count}


def _settled(running: Running) -> Figures:
    """Count the settled messages that arrive: they are sent only for credit."""
    receiver, sender = Client(running.port), Client(running.port)
    receiver.attach_receiver(0, ADDRESSES["direct"])
    receiver.grant(0, 0, CREDIT)
    thread = threading.Thread(target=_send_settled, args=(sender,), daemon=True)
    cpu = processor_seconds(running.pid)
    receiver.socket.settimeout(3.0)
    thread.start()
    arrived = granted = 0
    try:
        while arrived < COUNT:
            receiver.until(TRANSFER)
            arrived += 1
            if arrived - granted >= CREDIT // 2:
                granted = arrived
                receiver.grant(0, arrived, CREDIT)
    except BenchFailure:
        pass  # nothing came for three seconds: what has not arrived is lost
    cpu = processor_seconds(running.pid) - cpu
    receiver.close()
    sender.close()
    thread.join()
    return {"arrived": arrived, "CPU us": cpu * 1e6 / COUNT}


def _send_settled(sender: Client) -> None:
    payload = message(bytes(255))
    sender.attach_sender(0, ADDRESSES["direct"])
    sent = limit = 0
    try:
        while sent < COUNT:
            while sent >= limit:
                fields, _ = sender.until(FLOW)
                if len(fields) > 6 and fields[4] == 0:
                    limit = (fields[5] or 0) + fields[6]
            count = min(limit, COUNT) - sent
            sender.transfers(0, sent, count, payload, settled=True)
            sent += count
        sender.until()  # until the receiver has everything
    except (BenchFailure, OSError):
        pass  # the receiver has ended the case


def _calls(running: Running) -> Figures:
    """Send one request at a time; a server answers each to the address that it tells."""
    server, caller = Client(running.port), Client(running.port)
    server.attach_receiver(0, ADDRESSES["direct"])
    server.grant(0, 0, 2 * CALLS)
    reply_to = caller.attach_receiver(0, None)
    caller.grant(0, 0, 2 * CALLS)
    caller.attach_sender(1, ADDRESSES["direct"])
    server.attach_sender(1, reply_to)
    thread = threading.Thread(target=_answer, args=(server,), daemon=True)
    thread.start()
    payload = message(bytes(255), reply_to)
    delays: list[float] = []
    cpu = 0.0
    for call in range(WARM_UP + CALLS):
        if call == WARM_UP:
            cpu = processor_seconds(running.pid)
        begin = time.perf_counter()
        caller.transfers(1, call, 1, payload, settled=False)
        fields, _ = caller.until(TRANSFER)
        if call >= WARM_UP:
            delays.append(time.perf_counter() - begin)
        caller.accept(fields[1], fields[1])
        if not call % CREDIT:
            caller.grant(0, call + 1, 2 * CALLS)
    cpu = processor_seconds(running.pid) - cpu
    caller.close()
    thread.join()
    server.close()
    return {"CPU us": cpu * 1e6 / CALLS / 2, "median ms": statistics.median(delays) * 1000}


def _answer(server: Client) -> None:
    answer = message(bytes(255))
    try:
        for call in range(WARM_UP + CALLS):
            fields, _ = server.until(TRANSFER)
            server.accept(fields[1], fields[1])
            server.transfers(1, call, 1, answer, settled=True)
            if not call % CREDIT:
                server.grant(0, call + 1, 2 * CALLS)
    except (BenchFailure, OSError):
        pass  # the caller has failed, and says why


def _beside(running: Running) -> Figures:
    """Take long messages over one link, and small ones over another link of the same session."""
    sender, receiver = Client(running.port), Client(running.port)
    sender.attach_sender(0, ADDRESSES["stored"])
    payload = message(bytes(LONG_OCTETS))
    for number in range(LONG_MESSAGES):
        sender.long_transfer(0, number, payload, PART_OCTETS)
        sender.until(DISPOSITION)
    sender.close()
    receiver.attach_receiver(0, ADDRESSES["stored"])
    receiver.attach_receiver(1, ADDRESSES["queue"])
    receiver.grant(1, 0, SMALL_CREDIT)
    is_over = threading.Event()
    thread = threading.Thread(target=_send_times, args=(Client(running.port), is_over), daemon=True)
    thread.start()
    delays: list[float] = []
    arrived = 0
    receiver.grant(0, 0, LONG_MESSAGES)
    begin = time.monotonic()
    try:
        while arrived < LONG_MESSAGES * LONG_OCTETS:
            fields, octets = receiver.until(TRANSFER)
            if fields[0]:
                (sent,) = SENT.unpack(octets[-SENT.size :])
                delays.append(time.monotonic() - sent)
            else:
                arrived += len(octets)
    finally:
        is_over.set()
        thread.join()
        receiver.close()
    seconds = time.monotonic() - begin
    if len(delays) < LEAST_SMALL:
        raise BenchFailure(f"only {len(delays)} small messages arrived in {seconds:.1f} s")
    delays.sort()
    return {
        "MiB/s of long messages": arrived / seconds / (1 << 20),
        "small messages": len(delays),
        "median ms": statistics.median(delays) * 1000,
        "percentile_99 ms": delays[len(delays) * 99 // 100] * 1000,
        "longest ms": delays[-1] * 1000,
    }


def _send_times(sender: Client, is_over: threading.Event) -> None:
    """Send the time every two milliseconds, at most as often as there is credit."""
    sender.attach_sender(0, ADDRESSES["queue"])
    sender.until(FLOW)
    number = 0
    while not is_over.wait(0.002):
        sender.transfers(0, number, 1, message(SENT.pack(time.monotonic())), settled=True)
        number += 1
    sender.close()


def measure_amqp10(
    brokers: Sequence[Broker], arguments: argparse.Namespace, directory: Path, say: Callable[[str], None]
) -> int:
    """Measure, and print the report."""
    failed = False
    rows: dict[tuple[str, str], list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="omq-bench-", dir=directory, ignore_cleanup_errors=True) as made:
        setting = Setting(build_clients(Path(made)))
        for turn in range(arguments.runs):
            for case in arguments.cases:
                for broker in brokers if case != "no-server" else (None,):
                    name = "proton direct" if broker is None else broker.name
                    try:
                        if broker is not None:
                            with broker.running(Path(made) / f"{name}-{turn}-{case}") as running:
                                figures = measure(case, running, setting)
                        elif setting.clients is None:
                            raise BenchFailure(MISSING_EXAMPLES)
                        else:
                            figures = {"CPU us": direct_seconds(setting.clients, COUNT) * 1e6 / COUNT}
                    except (BenchFailure, OSError) as failure:
                        failed = True
                        say(f"{case}, {name}: FAILED: {failure}")
                        continue
                    rows.setdefault((case, name), []).append(figures)
                    words = ", ".join(f"{what} {value:,.2f}" for what, value in figures.items())
                    say(f"run {turn + 1} of {arguments.runs}: {case}, {name}: {words}")
    print_conditions(directory)
    print("| case | server | medians |\n|---|---|---|")
    for (case, name), runs in rows.items():
        medians = (f"{what} {statistics.median(run[what] for run in runs):,.2f}" for what in runs[0])
        print(f"| {case} | {name} | {', '.join(medians)} |")
    return 1 if failed else 0
