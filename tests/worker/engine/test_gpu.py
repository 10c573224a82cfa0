"""Which GPU a worker takes: real processes and real locks, and GPUs that are only names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest
from tiny_models import CONFIGS, save

from worker.engine.gpu import Gpu, folder_of
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import EngineInfo, EngineRefused
from worker.engine.visible_gpus import Question

IDS = ["5e1e5f3a-0000-0000-0000-000000000000", "a11a0000-0000-0000-0000-000000000001"]
HOLDER = """
import sys
from pathlib import Path
from worker.engine.gpu import Gpu
gpu = Gpu.take(sys.argv[1], sys.argv[3:], Path(sys.argv[2]))
print(gpu.place, gpu.num_others, flush=True)
sys.stdin.read()
"""
# A driver with two GPUs, whose ids are 16 times their numbers.
DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int place) { *device = place; return 0; }
int cuDeviceGetUuid_v2(unsigned char *id, int device) {
    for (int i = 0; i < 16; i++) id[i] = device;
    return 0;
}
"""


class Holder:
    """A process that takes a GPU and keeps it."""

    def __init__(self, folder, device="auto", ids=IDS):
        command = [sys.executable, "-P", "-c", HOLDER, device, str(folder), *ids]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def took(self):
        """Its GPU's number, and how many others have that."""
        return tuple(map(int, self._process.stdout.readline().split()))

    def kill(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def hold(tmp_path):
    with ExitStack() as running:

        def hold(*arguments):
            holder = Holder(tmp_path, *arguments)
            running.callback(holder.kill)
            return holder

        yield hold


@pytest.fixture
def driver(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None and "CI" not in os.environ:
        pytest.skip("needs a C compiler")
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    return tmp_path


def test_each_worker_takes_a_gpu_that_no_other_has_and_shares_the_one_with_fewest_once_all_are_taken(hold):
    assert [hold().took() for _ in range(5)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_a_killed_worker_leaves_its_gpu_to_the_next(hold, tmp_path):
    first, second, third = (hold() for _ in range(3))
    taken = [holder.took() for holder in (first, second, third)]
    assert sorted(taken) == [(0, 0), (0, 1), (1, 0)]
    (first, second, third)[taken.index((1, 0))].kill()
    assert hold().took() == (1, 0)
    assert len(list(tmp_path.glob("*.held"))) == 3, "what it had noted is taken away"


def test_workers_that_start_at_once_take_different_gpus(hold):
    ids = [f"{number:08x}-0000-0000-0000-000000000000" for number in range(8)]
    holders = [hold("cuda", ids) for _ in ids]
    assert sorted(holder.took() for holder in holders) == [(place, 0) for place in range(8)]


def test_a_worker_that_is_shown_fewer_gpus_sees_what_others_have(hold):
    assert hold("auto", IDS[1:]).took() == (0, 0)
    assert hold().took() == (0, 0)
    assert hold().took() == (0, 1)


def test_a_setting_that_names_a_gpu_is_followed_whoever_has_it(hold):
    assert [hold("cuda:1").took() for _ in range(2)] == [(1, 0), (1, 1)]
    assert [hold().took() for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]


def test_a_gpu_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(EngineRefused, match="RANKMILL_DEVICE is cuda:2, but CUDA shows 2 GPUs here"):
        Gpu.take("cuda:2", IDS, tmp_path)
    with pytest.raises(EngineRefused, match="CUDA shows 0 GPUs"):
        Gpu.take("cuda:0", [], tmp_path)
    assert Gpu.take("auto", [], tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("names", "shown"), [(None, "1"), ("2, 5", "5"), (f"GPU-{IDS[0]},GPU-{IDS[1]}", f"GPU-{IDS[1]}")]
)
def test_cuda_is_to_show_the_one_gpu_alone(monkeypatch, names, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names or "")
    if names is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    Gpu(1, IDS[1], 0, -1).show_alone()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == shown


def info_on(device):
    return EngineInfo(None, None, "padded/1", 2_048, "padded", device, choices={"attention": "sdpa"})


def test_an_engine_tells_which_gpu_it_has_and_that_others_have_it_too():
    alone, shared = (Gpu(1, IDS[1], num_others, -1).told(info_on("cuda")) for num_others in (0, 2))
    assert alone.device == shared.device == "cuda:1"
    assert alone.choices == {"attention": "sdpa", "gpu": IDS[1]}
    assert shared.choices == {**alone.choices, "gpu_shared_with": "2"}


def test_the_folder_is_the_users_own_or_what_the_setting_says(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert folder_of("") == tmp_path / f"rankmill-gpus-{os.getuid()}"
    assert folder_of("/shared/gpus").as_posix() == "/shared/gpus"


def test_the_driver_is_asked_for_the_gpus_that_it_shows(monkeypatch, driver):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    assert Question().answer() == ["00000000-0000-0000-0000-000000000000", "01010101-0101-0101-0101-010101010101"]


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch):
    monkeypatch.setattr("worker.engine.visible_gpus.DRIVER", "libnone.so.1")
    from worker.engine.visible_gpus import _ids

    assert _ids() == []


def test_an_engine_whose_torch_can_use_no_gpu_keeps_none(monkeypatch, driver, tmp_path):
    """As the worker for CPUs on a machine that has GPUs."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    save(tmp_path / "model", CONFIGS["llama"]())
    options = EngineOptions(model=str(tmp_path / "model"), device="auto", gpu_dir=str(tmp_path / "gpus"))
    engine = EngineProcess(options, start_timeout_seconds=300, hang_seconds=300)
    engine.start()
    try:
        assert engine.wait_ready(300).device == "cpu"
        note = next((tmp_path / "gpus").glob("00000000-*.held"))
        assert Gpu.take("auto", ["00000000-0000-0000-0000-000000000000"], tmp_path / "gpus").num_others == 0
        assert not note.exists()
    finally:
        engine.stop()
