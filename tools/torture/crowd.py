"""A process full of hostile clients, until its standard input ends: `crowd.py PORT SEED COUNT NUMBER OF`.

It has every OFth of COUNT clients, from the NUMBERth on, and says at the end how many connections each kind
has made: a JSON object on standard output.
"""

import json
import random
import resource
import sys
from collections import Counter
from itertools import islice

import trio
from hostile import KINDS, Client, clients


async def crowd(port: int, seed: int, count: int, number: int, of: int) -> Counter[str]:
    """Run the clients until standard input ends. Return the number of connections of each kind."""
    made = Counter({kind.name: 0 for kind in KINDS})
    everybody = []
    async with trio.open_nursery() as nursery:
        for place, kind in islice(enumerate(clients(count)), number, None, of):
            client = Client(port, random.Random(f"{seed} {place}"))
            everybody.append((kind, client))
            nursery.start_soon(client.live, kind)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()
    for kind, client in everybody:
        made[kind.name] += client.made
    return made


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port, seed, count, number, of = map(int, sys.argv[1:])
    print(json.dumps(trio.run(crowd, port, seed, count, number, of)))


if __name__ == "__main__":
    main()
