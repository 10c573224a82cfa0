"""The route of the pages' own files. They are for anybody, and kept for good: another content has another address."""

from __future__ import annotations

from fastapi import Response

from api.pages.assets import TYPES, address_of, content_of
from api.pages.route import router
from core.errors import Refused

KEPT = "public, max-age=31536000, immutable"

routes = router()


@routes.get("/static/{version}/{name}")
async def get_file(version: str, name: str) -> Response:
    """The file, if it is still that version."""
    if name not in TYPES or address_of(name) != f"/static/{version}/{name}":
        raise Refused("file_not_found", "there is no such file", status=404)
    return Response(content_of(name), media_type=TYPES[name], headers={"Cache-Control": KEPT})
