"""How the machine was used: right figures under MLflow's own names, and nothing where nothing can be known."""

from __future__ import annotations

import inspect
import math
import sys
import time

import psutil
import pytest
import torch
from mlflow.system_metrics.metrics import cpu_monitor, gpu_monitor
from toys import Toy, start

from trainable import loop
from trainable.system import SAMPLE_S, System, look_at_gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_what_this_process_used() -> None:
    """Busy for a while: about one CPU of its own; the machine at least that much; memory as psutil says."""
    system = System(CPU)
    system.begin()
    began, spent = time.perf_counter(), time.process_time()
    held = torch.ones(40_000_000)  # 160 MB
    while time.perf_counter() - began < 0.3:
        math.sqrt(2.0)
    said = system.said()
    share = (time.process_time() - spent) / (time.perf_counter() - began)
    assert said["process_cpu_utilization_percentage"] == pytest.approx(100 * share, rel=0.3, abs=5)
    assert said["cpu_utilization_percentage"] > 100 * share / (psutil.cpu_count() or 1) * 0.5
    assert said["process_memory_usage_megabytes"] > 160
    memory = psutil.virtual_memory()
    assert said["system_memory_usage_percentage"] == pytest.approx(100 * memory.used / memory.total, abs=15)
    assert said["system_memory_usage_megabytes"] < memory.total / 1e6
    assert not any("gpu" in name for name in said)
    assert held.sum() > 0
    system.close()


def test_names_are_those_of_mlflow() -> None:
    """The pages of MLflow know them; ours alone begin with process_."""
    system = System(CPU)
    system.begin()
    cpu, gpu = (inspect.getsource(module) for module in (cpu_monitor, gpu_monitor))
    assert all(f'"{name}"' in cpu for name in system.said() if not name.startswith("process_"))
    looked = ("utilization_percentage", "memory_usage_megabytes", "memory_usage_percentage", "power_usage_watts")
    assert all(f'gpu_{{i}}_{name}"' in gpu for name in looked)


def test_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare GPU machine has torch alone."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    system = System(CPU)
    system.begin()
    assert system.said() == {}
    system.close()


def test_a_gpu_is_looked_at_meanwhile_and_averaged() -> None:
    """What a look says is the driver's; which looks count, and what becomes of one that says less, is ours."""
    looks = iter([{"utilization_percentage": 90.0, "power_usage_watts": 300.0}, {"utilization_percentage": 50.0}])
    system = System(CUDA, lambda device: next(looks, {"utilization_percentage": 70.0}))
    system.begin()
    time.sleep(2.5 * SAMPLE_S)
    said = system.said()
    assert (said["gpu_0_utilization_percentage"], said["gpu_0_power_usage_watts"]) == (70.0, 300.0)
    system.begin()
    assert system.said()["gpu_0_utilization_percentage"] == 70.0  # at once: one look is taken all the same
    assert "gpu_0_power_usage_watts" not in system.said()
    system.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_driver_that_says_nothing() -> None:
    assert look_at_gpu(CUDA) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_gpu() -> None:
    held = torch.ones(64 * 2**20, device="cuda")
    found = look_at_gpu(CUDA)
    assert found["memory_usage_megabytes"] > held.nbytes / 1e6
    assert 0 < found["memory_usage_percentage"] <= 100
    assert 0 <= found["utilization_percentage"] <= 100
    assert found["power_usage_watts"] > 0


def test_the_norm_of_the_weights_is_torchs() -> None:
    run = start(Toy(), batch_size=2, epochs=1, lr=0.01)
    report = loop.advance(run)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in run.state.model.parameters()])
    assert report.weight_norm == pytest.approx(float(weights.norm()), rel=1e-6)
