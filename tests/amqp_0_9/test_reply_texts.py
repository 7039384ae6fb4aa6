"""The texts of refusals, which are RabbitMQ's: the suites of client libraries compare them."""

import pytest

from .broker import Broker
from .raw_client import Reply
from .wire import (
    bind,
    consume,
    declare_exchange,
    declare_queue,
    delete_exchange,
    delete_queue,
    get,
    open_channel,
    properties,
    publish,
    purge,
    unbind,
    unbind_exchange,
)


def text_of(reply: Reply) -> str:
    assert reply.name == "channel.close"
    return reply.args[3 : 3 + reply.args[2]].decode()


QUEUE = "NOT_FOUND - no queue 'none' in vhost '/'"
EXCHANGE = "NOT_FOUND - no exchange 'none' in vhost '/'"
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be "
    "originally declared on another connection or the exclusive property value does not match that of the "
    "original declaration."
)
EXCLUSIVE = "ACCESS_REFUSED - queue 'mine' in vhost '/' in exclusive use"


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (declare_queue(1, "none", passive=1), QUEUE),
        (consume(1, "none"), QUEUE),
        (get(1, "none"), QUEUE),
        (purge(1, "none"), QUEUE),
        (bind(1, "none", "amq.direct"), QUEUE),
        (declare_exchange(1, "none", passive=1), EXCHANGE),
        (bind(1, "mine", "none"), EXCHANGE),
        (publish(1, "none", "", b""), EXCHANGE),
        (declare_queue(1, "mine"), LOCKED),
        (declare_queue(1, "mine", durable=1), LOCKED),
        (
            declare_queue(1, "mine", exclusive=1, x_message_ttl=5),
            "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'mine' in vhost '/': received "
            "5 but current is none",
        ),
        (
            declare_queue(1, "new", exclusive=1, x_max_priority=-1),
            "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'new' in vhost '/': it is negative",
        ),
        (
            declare_queue(1, "new", exclusive=1, x_overflow="foo"),
            "PRECONDITION_FAILED - invalid arg 'x-overflow' for queue 'new' in vhost '/': it must be "
            "drop-head, reject-publish or reject-publish-dlx",
        ),
        (delete_queue(1, "mine", if_empty=1), "PRECONDITION_FAILED - queue 'mine' in vhost '/' not empty"),
        (
            delete_exchange(1, "amq.direct"),
            "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        ),
        (
            publish(1, "", "mine", b"", properties(user_id="other")),
            "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'",
        ),
        (
            publish(1, "", "mine", b"", properties(expiration="soon")),
            "PRECONDITION_FAILED - invalid expiration 'soon'",
        ),
    ],
)
def test_the_text_of_a_refusal(broker: Broker, refused: bytes, text: str) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "mine", exclusive=1))
    client.send(publish(1, "", "mine", b"it"))
    assert text_of(client.call(refused)) == text


def test_the_text_about_a_wrong_secret(broker: Broker) -> None:
    """Its details are in the log."""
    client = broker.reach()
    client.shake_hands("guest", "wrong", capabilities={"authentication_failure_close": True})
    text = (
        b"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker"
    )
    assert client.tune.args[3:].startswith(text)


def test_the_text_about_another_virtual_host(broker: Broker) -> None:
    client = broker.reach()
    client.shake_hands("guest", "guest", vhost="other")
    assert client.opened.args[3:].startswith(b"NOT_ALLOWED - vhost other not found")


def test_the_text_about_a_queue_of_another_connection(broker: Broker) -> None:
    broker.channel().call(declare_queue(1, "mine", exclusive=1))
    other = broker.channel()
    assert text_of(other.call(declare_queue(1, "mine", passive=1))) == LOCKED


def test_the_text_about_an_exclusive_consumer(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "mine", exclusive=1))
    client.call(consume(1, "mine", exclusive=1))
    assert text_of(client.call(consume(1, "mine"))) == EXCLUSIVE
    client.call(open_channel(2))
    client.call(consume(2, "mine"))
    assert client.call(open_channel(3)).name == "channel.open-ok"
    assert text_of(client.call(consume(3, "mine", exclusive=1))) == EXCLUSIVE


def test_what_is_in_use_says_so(broker: Broker) -> None:
    client = broker.channel()
    client.call(declare_queue(1, "mine", exclusive=1), declare_exchange(1, "source"))
    client.wait()
    client.call(bind(1, "mine", "source", "key"))
    assert text_of(client.call(delete_exchange(1, "source", if_unused=1))).endswith(
        "exchange 'source' in vhost '/' in use"
    )
    client.call(open_channel(2))
    client.call(consume(2, "mine"))
    assert text_of(client.call(delete_queue(2, "mine", if_unused=1))).endswith(
        "queue 'mine' in vhost '/' in use"
    )


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (unbind(1, "none", "amq.direct"), "unbind-ok"),
        (unbind(1, "mine", "none"), "unbind-ok"),
        (unbind_exchange(1, "none", "amq.direct", ""), "exchange.unbind-ok"),
        (unbind_exchange(1, "amq.direct", "none", ""), "exchange.unbind-ok"),
    ],
)
def test_a_binding_without_its_ends_can_be_unbound(broker: Broker, step: bytes, answer: str) -> None:
    """aio-pika does so when it closes what made a queue that it has deleted."""
    client = broker.channel()
    client.call(declare_queue(1, "mine", exclusive=1))
    assert client.said(step) == answer
