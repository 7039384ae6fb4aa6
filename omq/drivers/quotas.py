"""Refusals for what there are as many of as the configuration allows."""

from enum import Enum

from omq.access.limits import Quota
from omq.drivers.reasons import Reason, Refused


class Owner(Enum):
    """Who has as many as it may have, in the words of the refusal."""

    SERVER = "the server"
    CLIENT = "this client"


def check_quota(quota: Quota, owner: Owner, what: str) -> None:
    """Raises Refused when the quota is spent. `what` it counts is a plural."""
    if quota.is_spent:
        raise Refused(
            Reason.QUOTA, f"{owner.value} has its {quota.most} {what}, the most it is configured for"
        )
