"""Tests run out of what the operating system gives."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Limit this process to the descriptors of the three standard files within the block: it opens nothing.

    With a limit of 0, `poll` fails for a single file, too, in threads that have nothing to do with the test:
    that of PySpark, for example.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
