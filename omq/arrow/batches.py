"""Read one range of a topic as record batches."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from omq.arrow.columns import Columns
from omq.bulk.access import Access, Gap
from omq.bulk.errors import DataLoss
from omq.bulk.places import Place
from omq.bulk.ranges import Range
from omq.counted import counted

log = logging.getLogger("omq.arrow")


def batches(place: Place, part: Range, schema: Any, *, fail_on_data_loss: bool, hint: str) -> Iterator[Any]:
    """Yield the record batches of a range as `batches_from` does."""
    with place.open() as access:
        yield from batches_from(access, part, schema, fail_on_data_loss=fail_on_data_loss, hint=hint)


def batches_from(
    access: Access,
    part: Range,
    schema: Any,
    *,
    fail_on_data_loss: bool,
    hint: str,
    ahead: Sequence[Range] = (),
) -> Iterator[Any]:
    """Yield the record batches of a range, each of several blocks if they are small, with the columns of
    `schema`.

    If `fail_on_data_loss`, raise DataLoss for messages that are not available any more; `hint` says how to
    skip them. Otherwise skip them, and log which. Raises Unreachable, ServerRefused, DataLoss and
    omq_storage.errors.StoreError. Use `access` for nothing else before this ends, and then for the ranges
    `ahead` first, in this order.
    """
    columns = Columns(schema, part.topic.name)
    skipped = 0
    following = [(each.topic, each.start, each.end) for each in ahead]
    for found in access.fetch(part.topic, part.start, part.end, columns.add, following):
        if not isinstance(found, Gap):
            yield from found
            continue
        yield from columns.take()
        span = f"messages {found.first} to {found.last}"
        lost = f"Topic {part.topic.name!r}: {span} are gone: {found.reason}"
        if fail_on_data_loss and not found.is_hole:
            raise DataLoss(f"{lost}. {hint}")
        log.warning("%s", lost)
        if not found.is_hole:
            skipped += len(found)
    yield from columns.take()
    if skipped:
        log.warning("Topic %r: %s skipped in all", part.topic.name, counted(skipped, "message"))
