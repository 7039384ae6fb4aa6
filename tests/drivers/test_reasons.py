"""Reasons of refusals: every terminal has a code for each, and each says what it should."""

from pathlib import Path

import pytest

from omq.drivers.problems import for_clients
from omq.drivers.reasons import Failure, Reason, Refused
from omq.protocol.dmp.responses import ResponseCode
from omq.terminals.dmp.sink import problem_of
from omq_storage.errors import Limit, StoreFailed, StoreFull


@pytest.mark.parametrize("reason", Reason)
def test_dmp_has_a_response_code_for_every_reason(reason: Reason) -> None:
    problem = problem_of(Failure(reason, "why"))
    assert problem.why == "why"
    assert problem.code in ResponseCode
    assert problem.code is not ResponseCode.OK


def test_a_topic_that_is_gone_is_not_an_error_of_the_server() -> None:
    assert problem_of(Failure(Reason.DELETED, "x")).code is ResponseCode.NOT_FOUND
    assert problem_of(Failure(Reason.FORBIDDEN, "x")).code is ResponseCode.NOT_ALLOWED
    assert problem_of(Failure(Reason.NO_ROOM, "x")).code is ResponseCode.INTERNAL_ERROR


def test_a_refusal_is_the_exception_of_its_failure() -> None:
    failure = Failure(Reason.QUOTA, "there are too many")
    refused = Refused.of(failure)
    assert str(refused) == "there are too many"
    assert (refused.failure, refused.reason) == (failure, Reason.QUOTA)


def test_failures_of_the_store_name_no_paths(tmp_path: Path) -> None:
    assert for_clients(StoreFull(Limit.DISK, "x")) == Failure(Reason.NO_ROOM, "the disk is full")
    assert for_clients(StoreFull(Limit.MAP, "x")) == Failure(Reason.NO_ROOM, "the store is full")
    failed = for_clients(StoreFailed(f"cannot read {tmp_path}"))
    assert failed.reason is Reason.STORE_FAILED
    assert str(tmp_path) not in failed.text
