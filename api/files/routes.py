"""Routes of files, as OpenAI has them: upload, look, list, read, delete."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from api import answers
from api.batches import documents
from api.batches.rendering import Rendering
from api.batches.routes import found_after
from api.caller import ClientId
from api.files.answers import FileDeletedAnswer, id_of, name_of, to_answer, to_list
from api.files.file_ids import FileId, found
from api.files.upload import receive
from api.process import InProcess
from store import batches, files

OCTETS = "application/octet-stream"
LINES = "application/jsonl"

routes = APIRouter(tags=["files"])


class FilesQuery(BaseModel):
    """Parameters of the list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(10_000, ge=1, le=10_000, description="Most files on a page.")
    after: str | None = Field(None, description="The last one of the page before.")
    order: Literal["asc", "desc"] = Field("desc", description="By creation.")
    purpose: str | None = Field(None, description="Only those: `batch` or `batch_output`.")


@routes.post("/v1/files", summary="Upload a file", **documents.CREATE_FILE)
async def create_file(request: Request, process: InProcess, client_id: ClientId) -> Response:
    """Read as a stream and stored in pieces: its size costs no memory."""
    return answers.respond(to_answer(await receive(process, request, client_id)))


@routes.get("/v1/files", summary="List files", **documents.LIST_FILES)
def list_files(process: InProcess, client_id: ClientId, query: Annotated[FilesQuery, Query()]) -> Response:
    """Uploaded ones, and the answers of batches."""
    after = None if query.after is None else found_after(id_of(query.after))
    with process.database.begin() as connection:
        page = files.list_page(
            connection,
            client_id,
            limit=query.limit + 1,
            after=after,
            purpose=query.purpose,
            is_ascending=query.order == "asc",
        )
    return answers.respond(to_list(page, limit=query.limit))


@routes.get("/v1/files/{file_id}", summary="Get a file", **documents.GET_FILE)
def get_file(process: InProcess, client_id: ClientId, file_id: FileId) -> Response:
    """What it is; not what is in it."""
    with process.database.begin() as connection:
        file = found(files.get(connection, file_id, client_id=client_id))
    return answers.respond(to_answer(file))


@routes.get("/v1/files/{file_id}/content", summary="Read a file", **documents.GET_CONTENT)
def get_content(process: InProcess, client_id: ClientId, file_id: FileId) -> Response:
    """The bytes that were uploaded; or the lines of answers, read from the ledger as they are sent."""
    with process.database.begin() as connection:
        file = found(files.get(connection, file_id, client_id=client_id))
        batch = None if file.batch_id is None else batches.get(connection, file.batch_id, client_id=client_id)
    if batch is None:
        pieces, media_type = files.read(process.database, file.id), OCTETS
    else:
        pieces, media_type = Rendering(process, batch).stream(is_error=file.id == batch.error_file_id), LINES
    first = next(pieces, b"")  # what keeps us from reading at all is answered as an error
    return StreamingResponse(chain([first], pieces), media_type=media_type)


@routes.delete("/v1/files/{file_id}", summary="Delete a file", **documents.DELETE_FILE)
def delete_file(process: InProcess, client_id: ClientId, file_id: FileId) -> Response:
    """The bytes of a file that batches were made from go with the last of those batches: their answers repeat them."""
    with process.database.begin() as connection:
        found(files.delete(connection, file_id, client_id=client_id) or None)
    return answers.respond(FileDeletedAnswer(name_of(file_id)))
