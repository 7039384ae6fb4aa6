"""The lag of a stream behind its topics, from the progress that Spark reports for a query."""

import json

from pyspark.sql.streaming.listener import StreamingQueryProgress

from omq.bulk.errors import BadOptions
from omq.spark.positions import StreamPosition, positions_of


def behind(progress: StreamingQueryProgress) -> dict[str, int]:
    """Return for each topic the number of messages that waited after a micro-batch, over all sources of the
    query.

    `progress` is `query.lastProgress`, or `event.progress` of a listener. All messages of a topic that was
    created during the micro-batch wait.
    """
    waiting: dict[str, int] = {}
    for source in progress.sources:
        ends = _positions(source.endOffset)
        for name, position in _positions(source.latestOffset).items():
            end = ends.get(name)
            following = end.next if end is not None and end.id == position.id else 1
            waiting[name] = waiting.get(name, 0) + max(0, position.next - following)
    return waiting


def _positions(text: str) -> dict[str, StreamPosition]:
    """Parse the offsets of one source; empty for a source that is not of omq, or has none yet."""
    found = json.loads(text)
    if not isinstance(found, dict):
        return {}
    try:
        return positions_of(found)
    except BadOptions:
        return {}
