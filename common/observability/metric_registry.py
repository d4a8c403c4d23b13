"""Registry of the metrics: each has a description and a role, and is served at ``/metrics``."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

Kind = Literal["common", "runner", "store", "learner", "inference", "grader", "auditor"]
M = TypeVar("M", Counter, Gauge, Histogram)

CLIENT_CLOSED_REQUEST = 499
"""Status of a request whose client closed it before the answer, as in nginx."""


@dataclass(frozen=True, slots=True)
class MetricDoc:
    """A metric as operators meet it."""

    name: str
    role: Kind
    description: str
    runbook: str


REGISTRIES: dict[Kind, CollectorRegistry] = {role: CollectorRegistry() for role in get_args(Kind)}
METRIC_DOCS: list[MetricDoc] = []
disable_created_metrics()  # type: ignore[no-untyped-call]
ProcessCollector(registry=REGISTRIES["common"])
PlatformCollector(registry=REGISTRIES["common"])


def register(
    kind: Callable[..., M],
    role: Kind,
    name: str,
    description: str,
    runbook: str,
    labels: Sequence[str] = (),
    **more: Any,
) -> M:
    """Create a metric of a role. ``description``: when it moves; ``runbook``: what to do; ``more``: for its class."""
    name = f"lightningbus_{name}"
    labelled_name = f"{name}{{{','.join(labels)}}}" if labels else name
    METRIC_DOCS.append(MetricDoc(labelled_name, role, description, runbook))
    return kind(name, description, labels, registry=REGISTRIES[role], **more)


def render_exposition(role: str) -> bytes:
    """Render the body of a role's ``/metrics``, in Prometheus' text format."""
    texts = [generate_latest(registry) for kind, registry in REGISTRIES.items() if kind in ("common", role)]
    return b"".join(texts)


def request_metrics(requests: Counter, inflight: Gauge | None = None) -> Middleware:
    """Make middleware that counts a gateway's responses by status, and requests in flight."""

    @web.middleware
    async def count(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        status = CLIENT_CLOSED_REQUEST
        if inflight is not None:
            inflight.inc()
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        except Exception:
            status = 500
            raise
        finally:
            requests.labels(str(status)).inc()
            if inflight is not None:
                inflight.dec()

    return count
