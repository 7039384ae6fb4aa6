"""The entry point of the `omq` command, before the slow imports."""

import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn


def main() -> NoReturn:
    """Run the command and exit. Ctrl-C ends it without a traceback at any time."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        # While modules load there is nothing to clean up, so let Ctrl-C end the process at once.
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
