"""Cases for a broker: messages that a consumer gets before Cancel-Ok, and within a global prefetch."""

from .broker import Broker, Case, named
from .raw_client import Client, Reply
from .wire import ack, cancel, commit, consume, declare_queue, nack, publish, qos, select_tx

KINDS = {
    "exclusive": {"exclusive": 1},
    "durable": {"durable": 1},
    "quorum": {"durable": 1, "x_queue_type": "quorum"},
}


def replies_until(client: Client, name: str) -> list[Reply]:
    """Return the next replies up to the one with this name, or the last one that comes."""
    replies: list[Reply] = []
    while not replies or replies[-1].name not in {name, "EOF", "nothing"}:
        replies.append(client.wait())
    return replies


def told(replies: list[Reply]) -> str:
    """Return the messages with the tags of their consumers, and the names of other replies."""
    texts = []
    for reply in replies:
        is_delivery = reply.name == "deliver"
        texts.append(f"{reply.text}:{reply.body.decode()}" if is_delivery else reply.name)
    return " ".join(texts)


def left(client: Client, queue: str) -> str:
    """Return the number of messages that the queue has, as its declaration tells it."""
    return client.call(declare_queue(1, queue, passive=1)).told()


def messages(queue: str, count: int) -> bytes:
    return b"".join(publish(1, "", queue, b"%d" % number) for number in range(count))


def _behind_publishes(kind: str, no_ack: int) -> Case:
    def ask(broker: Broker) -> str:
        client = broker.channel()
        queue = f"p.cp-{kind}-{no_ack}"
        client.said(declare_queue(1, queue, **KINDS[kind]), consume(1, queue, "t", no_ack))
        client.send(messages(queue, 3) + cancel(1, "t"))
        return told(replies_until(client, "cancel-ok"))

    return ask


def _behind_an_acknowledgement(kind: str, prefetch: int) -> Case:
    def ask(broker: Broker) -> str:
        client = broker.channel()
        queue = f"p.ca-{kind}-{prefetch}"
        client.said(declare_queue(1, queue, **KINDS[kind]), qos(1, prefetch))
        client.send(messages(queue, 6))
        client.call(declare_queue(1, queue, passive=1))
        client.call(consume(1, queue, "t"))
        before = [client.wait() for _ in range(prefetch)]
        client.send(ack(1, 1) + cancel(1, "t"))
        got = told(before + replies_until(client, "cancel-ok"))
        return f"{got} | {left(client, queue)}"

    return ask


for each in KINDS:
    for flag in (0, 1):
        named(f"cancel behind publishes {each} {flag}")(_behind_publishes(each, flag))
    for window in (1, 3) if each != "quorum" else ():  # there the answer varies
        named(f"cancel behind an acknowledgement {each} {window}")(_behind_an_acknowledgement(each, window))


@named("cancel behind more than the prefetch allows")
def _within_the_prefetch(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.cw", durable=1), qos(1, 2), consume(1, "p.cw", "t"))
    client.send(messages("p.cw", 5) + cancel(1, "t"))
    return f"{told(replies_until(client, 'cancel-ok'))} | {left(client, 'p.cw')}"


@named("cancel of two behind publishes")
def _two_consumers(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.c2", durable=1), consume(1, "p.c2", "a"), consume(1, "p.c2", "b"))
    client.send(messages("p.c2", 5) + cancel(1, "a") + cancel(1, "b"))
    replies = replies_until(client, "cancel-ok") + replies_until(client, "cancel-ok")
    return told([reply for reply in replies if reply.name == "deliver"])


@named("cancel behind a nack")
def _behind_a_nack(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.cn", durable=1), qos(1, 1))
    client.send(messages("p.cn", 2))
    client.call(declare_queue(1, "p.cn", passive=1))
    client.call(consume(1, "p.cn", "t"))
    before = [client.wait()]
    client.send(nack(1, 1) + cancel(1, "t"))
    return f"{told(before + replies_until(client, 'cancel-ok'))} | {left(client, 'p.cn')}"


@named("cancel behind a commit")
def _behind_a_commit(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.ct3", durable=1), select_tx(1), consume(1, "p.ct3", "t"))
    client.send(messages("p.ct3", 3) + commit(1))
    replies = replies_until(client, "commit-ok")
    client.send(cancel(1, "t"))
    replies += replies_until(client, "cancel-ok")
    return told([reply for reply in replies if reply.name != "commit-ok"])


@named("global prefetch stops consumers without acknowledgements")
def _shared_window(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.ga", exclusive=1), declare_queue(1, "p.gn", exclusive=1))
    client.said(consume(1, "p.gn", "n", no_ack=1), qos(1, 1, is_global=1), consume(1, "p.ga", "a"))
    client.send(messages("p.gn", 2))
    parts = [client.deliveries(2)]
    client.send(messages("p.ga", 1))
    parts.append(client.deliveries(1))
    client.send(messages("p.gn", 2))
    parts.append(client.deliveries())
    client.send(ack(1, 3))
    parts.append(client.deliveries(2))
    return " | ".join(map(told, parts))


@named("global prefetch of consumers with and without acknowledgements of a queue")
def _shared_window_of_a_queue(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.gq", exclusive=1), qos(1, 1, is_global=1))
    client.said(consume(1, "p.gq", "a"), consume(1, "p.gq", "n", no_ack=1))
    client.send(messages("p.gq", 4))
    parts = [client.deliveries(1)]
    for count in (2, 1):
        client.send(ack(1, 0, multiple=1))
        parts.append(client.deliveries(count))
    return " | ".join(map(told, parts))


@named("global prefetch is lifted by one of each consumer")
def _lifted(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.gl", exclusive=1), qos(1, 1, is_global=1), consume(1, "p.gl", "a"))
    client.send(messages("p.gl", 2))
    before = client.deliveries(1)
    client.call(qos(1, 0))
    return f"{told(before)} | {told(client.deliveries(1))}"


@named("global prefetch beside an earlier one of each consumer")
def _beside(broker: Broker) -> str:
    client = broker.channel()
    client.said(declare_queue(1, "p.gb", exclusive=1), qos(1, 3), qos(1, 1, is_global=1))
    client.call(consume(1, "p.gb", "a"))
    client.send(messages("p.gb", 2))
    return told(client.deliveries(1))
