"""The routes of the dialects: a path, and how a body on it says whose it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response

from api.caller import ClientId
from api.dialects import answering, documents, urls
from api.dialects.answering import Chooser
from api.process import InProcess

routes = APIRouter(tags=["other systems' dialects"])


def _endpoint(choose: Chooser) -> Callable[..., Awaitable[Response]]:
    async def endpoint(request: Request, process: InProcess, client_id: ClientId) -> Response:
        """Waits for the scores; 504 when they take too long, and the job is cancelled then."""
        return await answering.answer(request, process, client_id, choose)

    return endpoint


for path, (summary, documented) in documents.ROUTES.items():
    routes.post(path, summary=summary, name=path.strip("/").replace("/", "_"), **documented)(
        _endpoint(urls.DIALECT_OF_URL[path])
    )
