"""AMQP clients in the load: publishers with confirms, consumers that acknowledge, return and reject.

What is rejected goes to the queue of dead letters. It must be in one of the two queues at any moment, so also
after a failure; it may be in both.
"""

import itertools
import random
import time
from functools import partial

import trio
from amqp_client import AmqpClient, Closed, amqp, arguments
from coming_and_going import come_and_go
from history import AMQP_DEAD, AMQP_WORK, History

from omq.protocol.amqp_0_9 import methods

EXCHANGE = b"torture"
KEY = b"orders.new"
CREDIT = 8

_numbers = itertools.count(1)


async def declare_amqp(port: int, history: History | None = None) -> None:
    """Make the queues, the exchange, and the binding."""
    work, dead = AMQP_WORK.encode(), AMQP_DEAD.encode()
    async with amqp(port) as client:
        await client.call(methods.QueueDeclare(dead, durable=True), methods.QueueDeclareOk)
        letters = arguments(x_dead_letter_exchange=b"", x_dead_letter_routing_key=dead)
        await client.call(methods.QueueDeclare(work, durable=True, arguments=letters), methods.QueueDeclareOk)
        declare = methods.ExchangeDeclare(EXCHANGE, b"topic", durable=True)
        await client.call(declare, methods.ExchangeDeclareOk)
        await client.call(methods.QueueBind(work, EXCHANGE, b"orders.*"), methods.QueueBindOk)
    if history is not None:
        history.bound = time.monotonic_ns()


async def is_routed(port: int, mark: bytes) -> bool:
    """Publish a message to the exchange, and return whether a queue got it."""
    try:
        async with amqp(port) as client:
            return await client.publish(EXCHANGE, KEY, [mark]) == (True, True)
    except Closed:
        return False  # there is no such exchange


async def load_amqp(port: int, history: History, chance: random.Random) -> None:
    """Run until the server ends, or until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_publish, port, history, chance)
        for queue in (AMQP_WORK, AMQP_WORK, AMQP_DEAD):
            work = partial(_work, queue=queue, history=history, chance=chance)
            nursery.start_soon(come_and_go, partial(amqp, port), work, (Closed, OSError), chance)


async def _publish(port: int, history: History, chance: random.Random) -> None:
    told = history.topics[AMQP_WORK]
    name = b"a%d" % next(_numbers)
    numbers = itertools.count()
    try:
        async with amqp(port) as client:
            while True:
                count = chance.choice((1, 1, 3, 20, 100))
                bodies = [b"%b:%d" % (name, number) for number in itertools.islice(numbers, count)]
                filling = b" " + b"." * chance.choice((0, 10, 100, 5000 if count < 20 else 200))
                told.published.update(bodies)
                history.topics[AMQP_DEAD].published.update(bodies)
                sent = [body + filling for body in bodies]
                are_stored, are_routed = await client.publish(EXCHANGE, KEY, sent)
                if not are_routed:
                    told.wrong.append("a message was returned, though the queue is bound")
                if are_stored:
                    told.confirmed.update(dict.fromkeys(bodies, time.monotonic_ns()))
                await trio.sleep(chance.random() * 0.01)
    except (Closed, OSError):
        pass  # the server is gone


async def _work(client: AmqpClient, queue: str, history: History, chance: random.Random) -> None:
    told = history.topics[queue]
    await client.call(methods.BasicQos(0, CREDIT), methods.BasicQosOk)
    await client.call(methods.BasicConsume(queue.encode()), methods.BasicConsumeOk)
    while True:
        message = await client.delivered()
        body = message.body.partition(b" ")[0]
        match chance.random():
            case throw if throw < 0.1:
                await client.send(methods.BasicNack(message.tag, requeue=True))
            case throw if throw < 0.3 and queue == AMQP_WORK:
                history.rejected[body] = told.done[body] = time.monotonic_ns()
                await client.send(methods.BasicReject(message.tag, requeue=False))
            case _:
                told.done[body] = time.monotonic_ns()
                if queue == AMQP_DEAD:
                    history.dead_lettered[body] = told.done[body]
                else:
                    history.rejected.pop(body, None)  # a rejection that did not arrive
                await client.send(methods.BasicAck(message.tag))
