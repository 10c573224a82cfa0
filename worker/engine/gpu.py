"""The GPU that this process has. Each worker of a machine takes one by itself: one that no other worker has, if there is.

Workers know of each other by locked files in a folder that they share. The kernel unlocks a file when its process ends,
however it ends. Nothing here asks CUDA anything, so that the choice is made before CUDA is first asked.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from worker.engine.protocol import EngineInfo, EngineRefused

_NOTE = ".held"  # a file's name is the GPU's id, something unique and this


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that this process has noted as its own. ``place`` is its number among those that CUDA would show."""

    place: int
    id: str
    num_others: int  # workers that have it too
    note: int  # a descriptor, whose lock lasts until the process ends

    @classmethod
    def take(cls, device: str, ids: list[str], folder: Path) -> Gpu | None:
        """Take the one that the setting names, or that the fewest have. None: there is none. Raises EngineRefused."""
        _, _, pinned = device.partition(":")
        places = [int(pinned)] if pinned else range(len(ids))
        if pinned and int(pinned) >= len(ids):
            raise EngineRefused(
                f"RANKMILL_DEVICE is {device}, but CUDA shows {len(ids)} GPUs here, the first as cuda:0"
            )
        if not ids:
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / "choosing").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # one at a time looks and notes its choice
            holders = _holders(folder)
            place = min(places, key=lambda place: (holders[ids[place]], place))
            return cls(place, ids[place], holders[ids[place]], _note(folder, ids[place]))

    def show_alone(self) -> None:
        """Have CUDA show this GPU alone, as number 0, to this process and those that it starts.

        So every thread works on it, and code compiled for one GPU of a machine serves the others.
        """
        names = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = names.split(",")[self.place].strip() if names else str(self.place)

    def told(self, info: EngineInfo) -> EngineInfo:
        """The info of an engine of this process: which GPU it runs on, as its worker would number them."""
        if info.device != "cuda":  # the choice was left to torch, which can't use it
            os.close(self.note)
            return info
        own = {"gpu": self.id} | ({"gpu_shared_with": str(self.num_others)} if self.num_others else {})
        return replace(info, device=f"cuda:{self.place}", choices={**info.choices, **own})


def folder_of(setting: str) -> Path:
    """Where the workers of a machine note their GPUs."""
    return Path(setting) if setting else Path(tempfile.gettempdir(), f"rankmill-gpus-{os.getuid()}")


def _holders(folder: Path) -> Counter[str]:
    """How many processes have each GPU. Notes of processes that have ended are taken away."""
    holders: Counter[str] = Counter()
    for file in folder.glob(f"*{_NOTE}"):
        with file.open() as note:
            try:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holders[file.name.partition(".")[0]] += 1
            else:
                file.unlink()
    return holders


def _note(folder: Path, gpu_id: str) -> int:
    descriptor, _ = tempfile.mkstemp(prefix=f"{gpu_id}.", suffix=_NOTE, dir=folder)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor
