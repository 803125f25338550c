"""What a trial gets and how many run at once; wishes that no machine can grant are refused in words."""

from __future__ import annotations

import pytest

from cluster.capacity import Capacity, of_nodes
from sweeps.running.placement import Placement, Wish, choose_threads, place
from sweeps.running.waiting import Waiting
from trainable.config import TrainConfig

LAPTOP = Capacity(8, 0, 8, 0, "this machine")
SMALL = Capacity(2, 0, 2, 0, "this machine")
GPU_BOX = Capacity(16, 4, 16, 4, "this machine")
CLUSTER = Capacity(32, 8, 16, 4, "2 Ray node(s)")

TABLE = {
    "a fair share of the CPUs": (Wish(), LAPTOP, 3, {}, (3, 2, 0)),
    "more trials than CPUs": (Wish(), SMALL, 3, {}, (2, 1, 0)),
    "one trial gets all CPUs": (Wish(), LAPTOP, 1, {}, (1, 8, 0)),
    "one at a time gets the share it would have beside others": (Wish(trials_at_once=1), LAPTOP, 3, {}, (1, 2, 0)),
    "so do two at a time": (Wish(trials_at_once=2), LAPTOP, 3, {}, (2, 2, 0)),
    "never more at once than trials": (Wish(trials_at_once=9), LAPTOP, 3, {}, (3, 2, 0)),
    "no more at once than there is room": (Wish(trials_at_once=4, cpus_per_trial=4), LAPTOP, 9, {}, (2, 4, 0)),
    "half a CPU each": (Wish(cpus_per_trial=0.5), SMALL, 10, {}, (4, 0.5, 0)),
    "a GPU each where there are any": (Wish(), GPU_BOX, 10, {}, (4, 1, 1)),
    "GPUs of all nodes": (Wish(), CLUSTER, 10, {}, (8, 1, 1)),
    "no GPU where none is wanted": (Wish(), GPU_BOX, 4, {"device": "cpu"}, (4, 4, 0)),
    "no GPU where that is said": (Wish(gpus_per_trial=0), GPU_BOX, 4, {}, (4, 4, 0)),
    "half a GPU each": (Wish(gpus_per_trial=0.5), GPU_BOX, 16, {}, (8, 1, 0.5)),
    "shares do not span GPUs": (Wish(gpus_per_trial=0.4), GPU_BOX, 16, {}, (8, 1, 0.4)),
    "a tenth is ten": (Wish(gpus_per_trial=0.1), Capacity(64, 1, 64, 1, "x"), 64, {}, (10, 1, 0.1)),
    "two GPUs each": (Wish(gpus_per_trial=2), CLUSTER, 9, {}, (4, 1, 2)),
    "cuda by name": (Wish(), GPU_BOX, 2, {"device": "cuda"}, (2, 8, 1)),
}


@pytest.mark.parametrize("case", TABLE)
def test_place(case: str) -> None:
    """B54 for the shares: never more trials on a GPU or CPU than were promised their part of it."""
    wish, capacity, num_trials, train, (at_once, cpus, gpus) = TABLE[case]
    found = place(wish, capacity, num_trials, TrainConfig(**train))
    assert (found.trials_at_once, found.cpus, found.gpus) == (at_once, cpus, gpus)
    assert f"each with {cpus:g} CPU(s)" in found.reason
    assert (f"and {gpus:g} GPU(s)" in found.reason) == (gpus > 0)


def test_a_wish_that_is_not_granted_is_said() -> None:
    """More at once than there is room: fewer run, and the reason says so; a granted wish says nothing."""
    cut = place(Wish(trials_at_once=3), SMALL, 3, TrainConfig())
    assert cut == Placement(2, 1.0, 0.0, "each with 1 CPU(s); 3 at once were asked for, this machine has room for 2")
    assert "asked for" not in place(Wish(trials_at_once=2), SMALL, 3, TrainConfig()).reason


def test_when_the_first_trial_runs_alone() -> None:
    """Only where processes would take CPUs from each other, and nobody has asked for more at once."""
    assert place(Wish(), SMALL, 3, TrainConfig()).first_alone
    assert not place(Wish(), SMALL, 1, TrainConfig()).first_alone
    assert not place(Wish(), LAPTOP, 3, TrainConfig()).first_alone  # two CPUs are left over
    assert not place(Wish(trials_at_once=2), SMALL, 3, TrainConfig()).first_alone


@pytest.mark.parametrize(
    ("wish", "capacity", "train", "parts"),
    [
        (Wish(cpus_per_trial=9), LAPTOP, {}, ["--cpus-per-trial 9", "the most is 8 on this machine"]),
        (Wish(cpus_per_trial=20), CLUSTER, {}, ["--cpus-per-trial 20", "the most is 16 on 2 Ray node(s)"]),
        (Wish(gpus_per_trial=1), LAPTOP, {}, ["--gpus-per-trial 1", "the most is 0 on this machine"]),
        (Wish(gpus_per_trial=0.5), LAPTOP, {}, ["--gpus-per-trial 0.5", "the most is 0"]),
        (Wish(gpus_per_trial=8), CLUSTER, {}, ["--gpus-per-trial 8", "the most is 4 on 2 Ray node(s)"]),
        (Wish(), LAPTOP, {"device": "cuda"}, ["device=cuda", "this machine has none", "--set device=cpu"]),
        (Wish(gpus_per_trial=0), GPU_BOX, {"device": "cuda"}, ["device=cuda", "--gpus-per-trial is 0"]),
        (Wish(gpus_per_trial=1), GPU_BOX, {"device": "cpu"}, ["--gpus-per-trial 1", "device=cpu", "never use"]),
    ],
)
def test_what_no_node_can_hold(wish: Wish, capacity: Capacity, train: dict[str, str], parts: list[str]) -> None:
    """Without the check Ray waits for ever for a node that will never come."""
    with pytest.raises(ValueError) as error:
        place(wish, capacity, 3, TrainConfig(**train))  # type: ignore[arg-type]
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"trials_at_once": 0}, "--trials-at-once 0 must be at least 1"),
        ({"trials_at_once": -2}, "--trials-at-once -2 must be at least 1"),
        ({"cpus_per_trial": 0.0}, "--cpus-per-trial 0 must be above 0"),
        ({"cpus_per_trial": -1.0}, "--cpus-per-trial -1 must be above 0"),
        ({"cpus_per_trial": float("nan")}, "--cpus-per-trial nan must be above 0"),
        ({"cpus_per_trial": float("inf")}, "--cpus-per-trial inf must be above 0"),
        ({"gpus_per_trial": 1.5}, "--gpus-per-trial 1.5 must be a whole number, a share between 0 and 1, or auto"),
        ({"gpus_per_trial": -1.0}, "--gpus-per-trial -1 must be"),
        ({"gpus_per_trial": float("nan")}, "--gpus-per-trial nan must be"),
        ({"gpus_per_trial": float("inf")}, "--gpus-per-trial inf must be"),
    ],
)
def test_wishes_that_mean_nothing(wish: dict[str, float], words: str) -> None:
    """B54: 1.5 GPUs are refused; NaN passes every comparison that is written the wrong way round."""
    with pytest.raises(ValueError) as error:
        Wish(**wish)  # type: ignore[arg-type]
    assert words in str(error.value)


MIXED = of_nodes(
    [
        {"CPU": 8, "GPU": 4, "accelerator_type:A100": 1},
        {"CPU": 16, "GPU": 2, "accelerator_type:T4": 1},
        {"CPU": 32, "memory": 1e9},
    ]
)


def test_a_type_of_gpu() -> None:
    """Only the nodes that have it count; Ray is asked for it as it asks itself, by a thousandth."""
    assert (MIXED.cpus, MIXED.gpus, MIXED.node_cpus, MIXED.node_gpus) == (56, 6, 32, 4)
    found = place(Wish(accelerator="T4"), MIXED, 8, TrainConfig())
    assert (found.trials_at_once, found.cpus, found.gpus) == (2, 2, 1)
    assert found.resources() == {"CPU": 2, "GPU": 1, "accelerator_type:T4": 0.001}
    assert found.reason.endswith("and 1 GPU(s) of type T4")
    with pytest.raises(ValueError, match="--accelerator H100: no node has it; there are: A100, T4"):
        place(Wish(accelerator="H100"), MIXED, 8, TrainConfig())
    with pytest.raises(ValueError, match="--gpus-per-trial 4: no node has that many, the most is 2 on 1 node"):
        place(Wish(accelerator="T4", gpus_per_trial=4), MIXED, 8, TrainConfig())
    with pytest.raises(ValueError, match="--accelerator T4 with --gpus-per-trial 0"):
        Wish(accelerator="T4", gpus_per_trial=0)


def test_nodes_that_an_autoscaler_brings() -> None:
    """Nothing is refused for want of nodes, and all trials may run at once: the others wait, which asks for nodes."""
    head = of_nodes([{"memory": 1e9}])  # the head of such a cluster often has no CPUs for trials
    with pytest.raises(ValueError, match=r"--gpus-per-trial 1: no node has that many.*add --wait"):
        place(Wish(gpus_per_trial=1), head, 8, TrainConfig())
    found = place(Wish(gpus_per_trial=1, accelerator="H100", wait=True), head, 8, TrainConfig())
    assert (found.trials_at_once, found.cpus, found.gpus) == (8, 1, 1)
    assert place(Wish(gpus_per_trial=1, wait=True, trials_at_once=3), head, 8, TrainConfig()).trials_at_once == 3


class Status:
    def __init__(self, status: str) -> None:
        self.status = status


def test_waiting_is_said_and_said_again() -> None:
    """After 20 s and then once a minute, with what is there at that moment; not while anything runs."""
    clock = [0.0]
    waiting = Waiting("each with 1 CPU(s) and 1 GPU(s)", lambda: of_nodes([{"CPU": 2}]), lambda: clock[0])
    trials = [Status("TERMINATED"), Status("PENDING")]
    said = {}
    for second in range(200):
        clock[0] = float(second)
        if words := waiting.look(trials):
            said[second] = words
    assert list(said) == [20, 80, 140]
    assert said[80] == (
        "waiting for 80 s for a node that has room for a trial, each with 1 CPU(s) and 1 GPU(s); "
        "there are 1 Ray node(s) with 2 CPU(s) and 0 GPU(s) in all"
    )
    clock[0] = 201.0
    assert waiting.look([*trials, Status("RUNNING")]) is None
    clock[0] = 215.0
    assert waiting.look(trials) is None  # counted anew


def test_gpus_are_counted_only_where_they_matter() -> None:
    """Counting them costs the import of torch, before anything is said."""
    assert not Wish().needs_gpus(TrainConfig())
    assert not Wish(gpus_per_trial=0).needs_gpus(TrainConfig())
    assert not Wish(gpus_per_trial="auto").needs_gpus(TrainConfig())  # Ray counts them
    assert Wish(gpus_per_trial=0.5).needs_gpus(TrainConfig())
    assert Wish().needs_gpus(TrainConfig(device="cuda"))


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bits of a result depend on them, so they are chosen once: config, then shell, then what is there."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert choose_threads(TrainConfig(), 4.0) == 4
    assert choose_threads(TrainConfig(num_workers=3), 4.0) == 1
    assert choose_threads(TrainConfig(num_workers=9), 4.0) == 1
    assert choose_threads(TrainConfig(), 0.5) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads(TrainConfig(), 8.0) == 3
    assert choose_threads(TrainConfig(threads=2), 8.0) == 2
    for nonsense in ("", "many", "0", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert choose_threads(TrainConfig(), 4.0) == 4
