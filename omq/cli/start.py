"""Where the `omq` command begins: before everything that takes long to import."""

import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """Run the command and exit. Ctrl-C ends it without a traceback at any time."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        # Nothing is under way while modules are loaded that would have to be ended in order.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    run: Callable[[], NoReturn]
    if sys.argv[1:2] == ["store"]:
        from omq.cli import store

        run = partial(store.main, sys.argv[2:])
    else:
        from omq.cli import client

        run = client.main
    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(1)
