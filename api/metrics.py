"""`GET /metrics`: what this front end has counted, for Prometheus and administrators."""

from __future__ import annotations

import time

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from api import openapi
from api.caller import admitted_admin
from api.process import InProcess
from core.errors import NotReady
from core.keys import fingerprint
from store import metrics
from store.metrics_server import registry_of

LOOK_SECONDS = 3  # a Postgres that does not answer must not hold up a scrape
KEPT_SECONDS = 3_600  # the key of the last scrape is good for so long while Postgres is away

routes = APIRouter(tags=["health"])


class Scraping:
    """The registry of one front end, and whose scrape it answered last: an outage of Postgres is what it shall show."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = registry_of(*metrics.API)
        self._last: tuple[bytes, float] = (b"", 0.0)

    def remember(self, authorization: str) -> None:
        """Whoever sent this header is an administrator now."""
        self._last = (fingerprint(authorization).sha256, time.monotonic())

    def remembers(self, authorization: str) -> bool:
        """Whether whoever sent this header was one lately."""
        known, at = self._last
        return known == fingerprint(authorization).sha256 and time.monotonic() - at < KEPT_SECONDS


async def _scraper(request: Request, process: InProcess) -> None:
    """Raises Refused (401, 403) for whoever is no administrator, NotReady where nobody can say."""
    scraping: Scraping = request.app.state.scraping
    header = request.headers.get("authorization", "")
    try:
        with anyio.fail_after(LOOK_SECONDS):
            kept = process.keyring.kept(header)
            if kept is None:
                kept = await run_sync(process.keyring.look, header, abandon_on_cancel=True)
    except (NotReady, TimeoutError) as error:
        if not scraping.remembers(header):
            raise NotReady(f"cannot see whose key this is: {error}") from error
    else:
        admitted_admin(kept)
        scraping.remember(header)


@routes.get("/metrics", summary="What has this front end counted?", dependencies=[Depends(_scraper)], **openapi.METRICS)
def scrape(request: Request) -> Response:
    """The metrics in Prometheus' text format. While Postgres is away, the key of the last scrape goes on to be good."""
    return Response(generate_latest(request.app.state.scraping.registry), media_type=CONTENT_TYPE_LATEST)
