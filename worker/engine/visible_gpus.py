"""Writes the ids of the GPUs that CUDA shows to a process with this environment, one a line; none where there is no driver.

A program of its own, because CUDA reads ``CUDA_VISIBLE_DEVICES`` once in a process' life, when it is first asked anything.
It asks the driver itself: torch takes many seconds to import. https://docs.nvidia.com/cuda/cuda-driver-api/
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import uuid

DRIVER = "libcuda.so.1"


class Question:
    """Has the program run, beside whatever else this process does. Others may be named in its place, for tests."""

    def __init__(self, program: tuple[str, ...] = (sys.executable, "-P", "-m", __name__)) -> None:
        self._process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def answer(self) -> list[str]:
        """Wait for the ids, in the order in which CUDA numbers the GPUs."""
        lines, _ = self._process.communicate()
        return lines.split()


def _ids() -> list[str]:
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return []
    status = driver.cuInit(0)
    if status:
        sys.stderr.write(f"CUDA's driver can't be used: cuInit says {status}\n")
        return []
    count = ctypes.c_int()
    _check(driver.cuDeviceGetCount(ctypes.byref(count)))
    return [_id(driver, place) for place in range(count.value)]


def _id(driver: ctypes.CDLL, place: int) -> str:
    device, own = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    _check(driver.cuDeviceGet(ctypes.byref(device), place))
    _check(driver.cuDeviceGetUuid_v2(own, device))
    return str(uuid.UUID(bytes=bytes(own)))


def _check(status: int) -> None:
    if status:
        raise SystemExit(f"CUDA's driver says {status}")


if __name__ == "__main__":
    sys.stdout.write("\n".join(_ids()))
