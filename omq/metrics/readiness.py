"""The readiness of a server: whether it can store messages."""

from functools import partial

from omq.metrics.source import MetricsSource
from omq.protocol.http.requests import NO_STORE, HttpAnswer, HttpRequest
from omq.threads import in_thread
from omq_storage.errors import StoreError

SLOW_SECONDS = 10.0
"""A commit that lasts longer means that the disk does not answer."""


class Readiness:
    """Answers requests for `/readyz`."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return 200, or 503 with one line for each reason."""
        reasons = await self._reasons()
        if reasons:
            return HttpAnswer(503, "".join(f"{reason}\n" for reason in reasons).encode(), fields=NO_STORE)
        return HttpAnswer.text(200, "ready", NO_STORE)

    async def _reasons(self) -> list[str]:
        reasons = ["the server stops"] if self._source.is_stopping else []
        for level, writer in self._source.catalogue.writers.items():
            found = writer.statistics()
            if found.refusal is not None:
                reasons.append(f"{level.value}: {found.refusal}")
            elif found.trouble is not None:
                reasons.append(f"{level.value}: {found.trouble}")
            if found.committing_seconds >= SLOW_SECONDS:
                reasons.append(f"{level.value}: a commit has taken {found.committing_seconds:.0f} s")
            try:
                await in_thread(partial(writer.environment.usage))
            except StoreError as problem:
                reasons.append(f"{level.value}: {problem}")
        return reasons
