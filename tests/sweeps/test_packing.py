"""`--gpus-per-trial auto`: how many trials share a GPU follows from what one takes; without a GPU it means none."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.capacity import Capacity, of_nodes
from cluster.connect import on_a_node, smallest_gpu
from sweeps import lr_scan, search
from sweeps.running.packing import GIB, Peak, demanding, num_that_fit, packed, share_of
from sweeps.running.placement import Wish, place
from sweeps.sweep import Sweep
from tests.helpers.drivers import result_of, run_command
from trainable.config import TrainConfig
from trainable.memory import CONTEXT_BYTES, fraction

ONE_GPU = Capacity(32, 1, 32, 1, "this machine")
TWO_GPUS = Capacity(8, 2, 8, 2, "this machine")
LAPTOP = Capacity(8, 0, 8, 0, "this machine")


def sweep_of(num_trials: int = 40, **train: Any) -> Sweep:
    return Sweep(
        name="s",
        question="search",
        task="digits",
        train=TrainConfig(threads=1, **train),
        space={"lr": {"log": [1e-4, 1e-1]}},
        num_trials=num_trials,
    )


def peak_of(taken: float, total: float) -> Peak:
    return Peak(int(taken * GIB), int(total * GIB))


def no_measure(resources: Mapping[str, float]) -> Peak:
    raise AssertionError("there is nothing to measure")


@pytest.mark.parametrize(
    ("taken", "total", "fit"),
    [
        (3.1, 24, 6),  # 22.8 of 24 are used; 3.72 each with the margin: six take 22.3
        (1.0, 24, 16),  # nineteen would fit: never more than sixteen
        (4.75, 24, 4),  # exactly
        (4.76, 24, 3),
        (9.5, 24, 2),
        (9.6, 24, 1),  # with its margin more than half of what is used
        (24, 24, 1),
        (30, 24, 1),
        (0.6, 8, 10),
        (7.0, 139.8, 15),
    ],
)
def test_how_many_fit(taken: float, total: float, fit: int) -> None:
    assert num_that_fit(peak_of(taken, total), most=100) == fit


@given(st.integers(1, 300 * GIB), st.integers(GIB, 300 * GIB), st.integers(1, 40))
def test_as_many_as_fit_and_no_more(taken: int, total: int, most: int) -> None:
    num = num_that_fit(Peak(taken, total), most)
    assert num == 1 or num * taken * 120 <= 95 * total
    assert (num + 1) * taken * 120 > 95 * total or num == min(most, 16)


@given(st.integers(0, 100 * GIB), st.integers(0, 4 * GIB), st.integers(8 * GIB, 300 * GIB))
def test_the_cap_of_a_share_leaves_room_for_the_peak(reserved: int, own: int, total: int) -> None:
    """B54. What torch may reserve under the share's cap is no less than what it was seen to reserve. own: CUDA's."""
    num = num_that_fit(Peak(reserved + max(own, CONTEXT_BYTES), total), 16)
    share = share_of(num)
    assert num * share <= 1
    if num > 1:
        assert fraction(share, total) * total >= reserved
        assert num * (reserved + own) <= total


@pytest.mark.parametrize("num", range(1, 17))
def test_so_many_are_placed(num: int) -> None:
    """Ray rounds shares to four digits: seven of a seventh must still be seven."""
    share = share_of(num)
    assert num * round(share, 4) <= 1
    assert place(Wish(gpus_per_trial=share), ONE_GPU, 40, TrainConfig()).trials_at_once == num


def test_what_it_comes_to() -> None:
    asked: list[Mapping[str, float]] = []

    def measure(resources: Mapping[str, float]) -> Peak:
        asked.append(resources)
        return peak_of(3.1, 24)

    wish = packed(Wish(gpus_per_trial="auto"), ONE_GPU, sweep_of(), measure)
    assert asked == [{"CPU": 1.0, "GPU": 1.0}]  # as a trial would have that is alone there
    found = place(wish, ONE_GPU, 40, TrainConfig())
    assert (found.trials_at_once, found.gpus) == (6, 0.1666)
    assert found.reason == "each with 1 CPU(s) and 0.1666 GPU(s); 0.1666 GPU(s) each: one peaks at 3.1 GiB of 24.0 GiB"


@pytest.mark.parametrize(
    ("wish", "capacity", "num_trials", "share"),
    [
        ({}, TWO_GPUS, 40, 0.25),  # eight CPUs, eight trials, four on each
        ({"cpus_per_trial": 3}, TWO_GPUS, 40, 1),  # two at once, as many as GPUs
        ({"cpus_per_trial": 2}, TWO_GPUS, 40, 0.5),
        ({}, TWO_GPUS, 5, 0.3333),  # three and two
        ({}, TWO_GPUS, 2, 1),
        ({"trials_at_once": 4}, TWO_GPUS, 40, 0.5),
        ({"trials_at_once": 1}, ONE_GPU, 40, 1),
        ({"wait": True}, TWO_GPUS, 40, 0.0625),  # there will be other nodes
    ],
)
def test_no_more_than_there_are_trials_and_cpus(
    wish: dict[str, Any], capacity: Capacity, num_trials: int, share: float
) -> None:
    found = packed(
        Wish(gpus_per_trial="auto", **wish), capacity, sweep_of(num_trials), lambda resources: peak_of(0.6, 80)
    )
    assert found.gpus_per_trial == share
    placed = place(found, capacity, num_trials, TrainConfig())
    assert placed.trials_at_once <= num_trials
    assert f"{share:g} GPU(s) each" in placed.reason


def test_where_it_cannot_be_measured_each_has_a_gpu() -> None:
    def measure(resources: Mapping[str, float]) -> Peak:
        raise RuntimeError("FileNotFoundError: no data there")

    found = packed(Wish(gpus_per_trial="auto"), ONE_GPU, sweep_of(), measure)
    placed = place(found, ONE_GPU, 40, TrainConfig())
    assert (placed.gpus, placed.trials_at_once) == (1, 1)
    assert "1 GPU(s) each: the memory of one could not be measured, FileNotFoundError: no data" in placed.reason


@pytest.mark.parametrize(
    ("wish", "capacity", "train", "gpus", "words"),
    [
        ({}, LAPTOP, {}, 0, "no GPU: auto means none"),
        ({"workers_per_trial": 2}, LAPTOP, {}, 0, "no GPU: auto means none"),
        ({}, ONE_GPU, {"device": "cpu"}, 0, "auto means none, as trials use no GPU"),
        ({"workers_per_trial": 2}, TWO_GPUS, {}, 1, "auto means a whole GPU for each worker"),
    ],
)
def test_where_there_is_nothing_to_measure(
    wish: dict[str, Any], capacity: Capacity, train: dict[str, Any], gpus: float, words: str
) -> None:
    found = packed(Wish(gpus_per_trial="auto", **wish), capacity, sweep_of(**train), no_measure)
    placed = place(found, capacity, 40, TrainConfig(**train))
    assert placed.gpus == gpus
    assert placed.reason.endswith(words)


MIXED = of_nodes([{"CPU": 8, "GPU": 1, "accelerator_type:A100": 1}, {"CPU": 16, "GPU": 2, "accelerator_type:T4": 1}])


def test_a_type_of_gpu() -> None:
    """Counted are the GPUs of this type alone, and one of them is measured on."""
    asked: list[Mapping[str, float]] = []

    def measure(resources: Mapping[str, float]) -> Peak:
        asked.append(resources)
        return peak_of(5, 16)

    found = packed(Wish(gpus_per_trial="auto", accelerator="T4"), MIXED, sweep_of(5), measure)
    assert asked == [{"CPU": 3.0, "GPU": 1.0, "accelerator_type:T4": 0.001}]
    assert found.gpus_per_trial == 0.5  # five trials on two GPUs: three would be of use, two fit
    with pytest.raises(ValueError, match="--accelerator H100: no node has it"):
        packed(Wish(gpus_per_trial="auto", accelerator="H100"), MIXED, sweep_of(), no_measure)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="device=cuda needs a GPU for each trial, but this machine has none"):
        packed(Wish(gpus_per_trial="auto"), LAPTOP, sweep_of(device="cuda"), no_measure)
    for wish, capacity in (({}, LAPTOP), ({"accelerator": "H100"}, MIXED)):
        with pytest.raises(ValueError, match=r"measures on a GPU that is there, and with --wait there is none yet"):
            packed(Wish(gpus_per_trial="auto", wait=True, **wish), capacity, sweep_of(), no_measure)


@pytest.mark.parametrize("given", ["automatic", "-1", "1.5", "AUTO", "", "nan", "inf", True])
def test_words_that_mean_nothing(given: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number, a share between 0 and 1, or auto") as error:
        Wish(gpus_per_trial=given)
    assert str(error.value).startswith("--gpus-per-trial ")
    with pytest.raises(ValueError, match="a share between 0 and 1, or auto"):
        lr_scan("digits", gpus_per_trial=given, progress="none")


def test_a_number_may_be_written_as_text() -> None:
    assert Wish(gpus_per_trial="0.25") == Wish(gpus_per_trial=0.25)
    assert Wish(gpus_per_trial="auto").num_gpus is None
    assert Wish(gpus_per_trial="auto").is_auto


def test_the_most_demanding_trials() -> None:
    """Of a scan all take the same; of a space the largest sizes count, wherever in it they stand."""
    points = ({"lr": 1e-3, "seed": 0}, {"lr": 1e-2, "seed": 0}, {"lr": 1e-3, "seed": 1})
    scan = Sweep(name="s", question="lr_scan", task="digits", train=TrainConfig(threads=1), points=points)
    assert demanding(scan) == [points[0]]
    space = {
        "lr": {"log": [1e-4, 1e-1]},
        "batch_size": {"choice": [32, 256, 64]},
        "task.dropout": {"float": [0.0, 0.5]},
        "optimizer": {"choice": {"adamw": {"task.width": {"int": [8, 512], "log": True}}, "sgd": {}}},
    }
    searched = Sweep(
        name="s",
        question="search",
        task="digits",
        train=TrainConfig(threads=1),
        space=space,
        num_trials=4,
        points=({"batch_size": 64}, {"batch_size": 256}),
    )
    assert demanding(searched) == [
        {"batch_size": 256, "task.width": 512},
        {"batch_size": 256},
        {"batch_size": 64},
    ]
    assert demanding(sweep_of()) == [{}]


def test_asked_on_a_node(local_ray: None, tmp_path: Path) -> None:
    """The answer, or in words why there is none; without a GPU nobody says how large they are."""
    half = {"CPU": 0.5}
    assert on_a_node(os.path.basename, "a/b", half, within_s=60) == "b"
    with pytest.raises(RuntimeError, match="No such file or directory: '/no/such/file'"):
        on_a_node(os.path.getsize, "/no/such/file", half, within_s=60)
    with pytest.raises(RuntimeError, match=r"as there was no answer within 0\.5 s"):
        on_a_node(os.path.basename, "a/b", {"CPU": 1, "elsewhere": 1}, within_s=0.5)
    assert smallest_gpu("H100") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_a_scan_runs_to_its_end(
    local_ray: None, launch_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for in a file and by a flag: nothing is measured, and it is said."""
    Path("flags.yaml").write_text("gpus_per_trial: auto\n")
    assert lr_scan.main(["--plan", "--config", "flags.yaml"]) == 0
    assert "no GPU: auto means none" in capsys.readouterr().out
    flags = ["--lrs", "1e-3", "1e-2", "--set", "task.width=8", "--name", "packed", "--progress", "none"]
    assert lr_scan.main([*flags, "--gpus-per-trial", "auto"]) == 0
    said = capsys.readouterr()
    assert "no GPU: auto means none" in said.out
    assert "measuring" not in said.err
    result = json.loads(Path("results/packed/result.json").read_text())
    assert [trial["state"] for trial in result["trials"]] == ["complete"] * 2


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_trials_share_a_gpu_as_they_were_measured(tmp_path: Path) -> None:
    done = run_command("--lrs", "1e-3", "1e-2", "--gpus-per-trial", "auto", "--name", "packed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"0\.5 GPU\(s\) each: one peaks at [01]\.\d GiB of \d+\.\d GiB", done.stdout), done.stdout
    trials = result_of(tmp_path / "results/packed")["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 2


def test_a_plan_for_a_cluster_says_that_it_is_measured(launch_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search.main(["--plan", "--address", "127.0.0.1:1", "--gpus-per-trial", "auto"]) == 0
    assert "how many trials share a GPU is measured on the cluster first" in capsys.readouterr().out
