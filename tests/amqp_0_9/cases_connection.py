"""Cases for a broker: the connection."""

import struct
import time
from functools import partial
from itertools import pairwise
from statistics import median

from .broker import Broker, case, named
from .raw_client import PATIENCE, read_table
from .wire import (
    body,
    close_channel,
    declare_queue,
    header,
    long,
    method,
    open_channel,
    publishing,
    short,
    table,
)


@case
def start(broker: Broker) -> str:
    client = broker.connect()
    args = client.start.args
    found, at = read_table(args, 2)
    (length,) = struct.unpack_from(">I", args, at)
    mechanisms = args[at + 4 : at + 4 + length].decode()
    shown = sorted((name, of if name == "capabilities" else of[:1]) for name, of in found.items())
    return f"version {args[0]}-{args[1]} mechanisms {mechanisms} properties {shown}"


@case
def tune(broker: Broker) -> str:
    return str(broker.connect().tuned)


def answer_to(version: bytes, broker: Broker) -> str:
    client = broker.reach()
    client.send(b"AMQP" + version)
    client.socket.settimeout(PATIENCE)
    answer = client.socket.recv(64)
    return "start" if answer[:1] == b"\1" else answer[:8].hex()


for version in (b"\1\1\0\x09", b"\1\1\x09\1", b"\1\1\x08\0", b"\0\0\x09\0", b"\0\0\x0a\1"):
    named(f"header {version.hex()}")(partial(answer_to, version))


@case
def bad_secret(broker: Broker) -> str:
    client = broker.connect(secret="wrong")
    return client.tune.told()


@case
def bad_secret_without_capability(broker: Broker) -> str:
    client = broker.connect(secret="wrong", capabilities={})
    return client.tune.told()


@case
def bad_mechanism(broker: Broker) -> str:
    client = broker.reach()
    client.send(b"AMQP\0\0\x09\1")
    client.wait()
    return client.call(method(0, 10, 11, table({}) + short("NONE") + long(b"x") + short("en_US"))).told()


@case
def unknown_vhost(broker: Broker) -> str:
    return broker.connect(vhost="nosuch").opened.told()


@case
def frame_max_too_small(broker: Broker) -> str:
    return broker.connect(frame_max=1024).opened.told()


@case
def frame_max_too_large(broker: Broker) -> str:
    return broker.connect(frame_max=1 << 30).opened.told()


@case
def channel_max_0(broker: Broker) -> str:
    return broker.connect(channel_max=0).opened.told()


@case
def close_ok(broker: Broker) -> str:
    client = broker.connect()
    return client.call(method(0, 10, 50, b"\0\xc8" + short("bye") + b"\0\0\0\0")).told()


@case
def unopened_channel(broker: Broker) -> str:
    return broker.connect().call(declare_queue(1, "")).told()


@case
def channel_opened_twice(broker: Broker) -> str:
    client = broker.channel()
    return client.open().told()


@case
def channel_above_max(broker: Broker) -> str:
    client = broker.connect(channel_max=5)
    return client.open(6).told()


@case
def channel_reopened(broker: Broker) -> str:
    client = broker.channel()
    return client.said(close_channel(1), open_channel(1), declare_queue(1, ""))


@case
def frame_too_large(broker: Broker) -> str:
    client = broker.channel()
    too_long = body(1, b"x" * (client.frame_max + 1))
    return client.call(publishing(1, "", "q"), header(1, 1 << 20), too_long).told()


@case
def frame_end_wrong(broker: Broker) -> str:
    client = broker.channel()
    return client.call(declare_queue(1, "")[:-1] + b"\0").told()


@case
def frame_type_unknown(broker: Broker) -> str:
    client = broker.channel()
    return client.call(struct.pack(">BHI", 9, 1, 0) + b"\xce").told()


@case
def header_without_publish(broker: Broker) -> str:
    client = broker.channel()
    return client.call(header(1, 1)).told()


@case
def method_within_content(broker: Broker) -> str:
    client = broker.channel()
    return client.call(publishing(1, "", "q"), declare_queue(1, "")).told()


@case
def body_longer_than_said(broker: Broker) -> str:
    client = broker.channel()
    return client.call(publishing(1, "", "q"), header(1, 3), body(1, b"12345")).told()


@case
def method_unknown(broker: Broker) -> str:
    client = broker.channel()
    return client.call(method(1, 60, 99)).told()


@case
def class_unknown(broker: Broker) -> str:
    client = broker.channel()
    return client.call(method(1, 61500, 10, short("x"))).told()


@case
def arguments_cut(broker: Broker) -> str:
    client = broker.channel()
    return client.call(method(1, 50, 10, b"\0\0\5ab")).told()


@case
def channel_flow_off(broker: Broker) -> str:
    client = broker.channel()
    return client.call(method(1, 20, 20, b"\0")).told()


@case
def channel_flow_on(broker: Broker) -> str:
    client = broker.channel()
    return client.call(method(1, 20, 20, b"\1")).told()


@case
def heartbeat_2(broker: Broker) -> str:
    client = broker.connect(heartbeat=2)
    times = [time.monotonic()]
    while len(times) <= 4 and client.frame() is not None:
        times.append(time.monotonic())
    gaps = [after - before for before, after in pairwise(times)]
    # A busy machine makes one gap longer, and perhaps the next one shorter.
    return f"{len(gaps)} heartbeats, every {median(gaps):.0f} s"


@case
def heartbeat_2_silent_client(broker: Broker) -> str:
    client = broker.connect(heartbeat=2)
    begin = time.monotonic()
    while time.monotonic() - begin < 12 and client.frame(12) is not None:
        pass
    if not client.has_ended:
        return "alive"
    return f"closed, {'after' if time.monotonic() - begin > 4 else 'within'} two intervals"


@case
def access_request(broker: Broker) -> str:
    client = broker.channel()
    return client.call(method(1, 30, 10, short("/data") + b"\x1f")).told()
