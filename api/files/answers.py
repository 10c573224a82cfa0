"""Files as OpenAI's clients know them."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from msgspec import Struct

from store.files import File

PREFIX = "file-"


class FileAnswer(Struct, frozen=True, kw_only=True):
    """A file. Times are seconds since 1970."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(Struct, frozen=True):
    """Some files. ``after=last_id`` leads on while ``has_more``."""

    data: list[FileAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeletedAnswer(Struct, frozen=True):
    """It is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def to_answer(file: File) -> FileAnswer:
    """The file as its client sees it."""
    return FileAnswer(
        id=name_of(file.id),
        bytes=file.num_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=int(file.expires_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
    )


def to_list(files: list[File], *, limit: int) -> FileList:
    """A page of at most ``limit`` of the files: one more was asked for, to see whether there is more."""
    data = [to_answer(file) for file in files[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return FileList(data, len(files) > limit, first, last)


def name_of(file_id: UUID) -> str:
    """The id as clients know it."""
    return PREFIX + file_id.hex


def id_of(name: str, prefix: str = PREFIX) -> UUID | None:
    """The id behind such a name; None for what is none."""
    try:
        found = UUID(name.removeprefix(prefix))
    except ValueError:
        return None
    return found if name == prefix + found.hex else None
