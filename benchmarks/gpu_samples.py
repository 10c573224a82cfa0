"""What ``nvidia-smi`` says of the GPUs, twice a second, where there is one."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import statistics
import subprocess
import threading
import time
from typing import Self

FIELDS = ("utilization.gpu", "clocks.sm", "power.draw", "memory.used")
NAMES = ("gpu_percent", "clock_mhz", "power_w", "memory_mib")
EVERY_MILLISECONDS = 500


class GpuSamples:
    """Samples for the length of a block; no program, no samples."""

    def __enter__(self) -> Self:
        self._samples: list[tuple[float, list[float]]] = []
        self._program = None
        if shutil.which("nvidia-smi"):
            asked = f"--query-gpu={','.join(FIELDS)}"
            command = ["nvidia-smi", asked, "--format=csv,noheader,nounits", "-lms", str(EVERY_MILLISECONDS)]
            ours, its = pty.openpty()  # for a pipe it would keep its lines back
            self._program = subprocess.Popen(command, stdout=its, stderr=subprocess.DEVNULL)
            os.close(its)
            self._lines = open(ours, errors="replace")  # noqa: PTH123 - a descriptor, closed by its reader
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._program is not None:
            self._program.terminate()
            self._program.wait()
            self._reader.join()

    def means(self, begin: float, end: float) -> dict[str, float]:
        """The mean of each over time and GPUs; empty where nothing was sampled."""
        found = [values for at, values in list(self._samples) if begin <= at <= end]
        return {
            name: round(statistics.fmean(column), 1)
            for name, column in zip(NAMES, zip(*found, strict=False), strict=False)
        }

    def _read(self) -> None:
        with self._lines, contextlib.suppress(OSError):  # raised where the program has ended
            for line in self._lines:
                with contextlib.suppress(ValueError):  # a field that this GPU does not have
                    self._samples.append((time.monotonic(), [float(value) for value in line.split(",")]))
