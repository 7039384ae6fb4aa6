"""The common part of tests of the compiled codec and its plain twin."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from omq_storage import codec

BUILT = importlib.util.find_spec("omq_storage._codec") is not None

needs_codec = pytest.mark.skipif(
    not BUILT, reason="no compiled codec here: it was installed without a C compiler, or not installed"
)


def native() -> Any:
    """Return the compiled codec."""
    return importlib.import_module("omq_storage._codec")


@contextmanager
def compiled() -> Iterator[None]:
    """Use the compiled codec if there is one, also with OMQ_PLAIN=1."""
    with pytest.MonkeyPatch.context() as patch:
        if BUILT:
            patch.setattr(codec, "native", native(), raising=False)
            patch.setattr(codec, "COMPILED", True)
        yield


@contextmanager
def using(*, compiled: bool) -> Iterator[None]:
    """Use the compiled codec, or the plain one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "COMPILED", compiled)
        yield


@pytest.fixture(params=[True, False], ids=["compiled", "plain"])
def each_codec(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test with the compiled codec, and then with the plain one."""
    if request.param and not codec.COMPILED:
        pytest.skip("no compiled codec here")
    with using(compiled=request.param):
        yield


def outcome(call: Callable[[], Any]) -> Any:
    """Return the value of a call, or the type and text of its exception."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - any error at all must be the twin's
        return type(error), str(error)
