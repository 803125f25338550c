"""Faults that products of this kind had with devices, precisions, loader processes and start methods."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import Noisy, Toy, finish, start, train

from trainable import loop
from trainable.device import Probe, choose_device
from trainable.loader import SeededSamples, collated
from trainable.precision import choose_numerics
from trainable.workers import Limits, check_limits

HERE = Path(__file__).parent
AMPERE = Probe(cuda=True, mps=False, compute_capability=(8, 0))
TURING = Probe(cuda=True, mps=False, compute_capability=(7, 5))
APPLE = Probe(cuda=False, mps=True)
PLAIN = Probe(cuda=False, mps=False)


class TestB45PrecisionOfEachDevice:
    @pytest.mark.parametrize(
        ("probe", "wanted", "device", "dtype", "scaled"),
        [
            (AMPERE, "auto", "cuda", torch.bfloat16, False),
            (AMPERE, "fp16", "cuda", torch.float16, True),
            (AMPERE, "fp32", "cuda", None, False),
            (TURING, "auto", "cuda", torch.float16, True),
            (APPLE, "auto", "mps", None, False),
            (APPLE, "bf16", "mps", torch.bfloat16, False),
            (PLAIN, "auto", "cpu", None, False),
            (PLAIN, "bf16", "cpu", torch.bfloat16, False),
        ],
    )
    def test_the_table(self, probe: Probe, wanted: Any, device: str, dtype: Any, scaled: bool) -> None:
        chosen, reason = choose_device("auto", probe)
        numerics = choose_numerics(wanted, chosen, probe)
        assert (chosen.type, numerics.dtype, numerics.scaled) == (device, dtype, scaled)
        assert reason
        assert numerics.reason

    @pytest.mark.parametrize("wanted", ["auto", "fp32", "bf16"])
    def test_no_scaler_is_made_for_mps(self, wanted: Any) -> None:
        numerics = choose_numerics(wanted, torch.device("mps"), APPLE)
        assert not numerics.scaler(65536.0).is_enabled()

    @pytest.mark.parametrize(
        ("wanted", "device", "probe", "words"),
        [
            ("bf16", "cuda", TURING, r"capability 8\.0 .*\(7, 5\); use precision=auto or fp16"),
            ("fp16", "mps", APPLE, "which mps lacks; use precision=auto or bf16"),
        ],
    )
    def test_what_a_device_cannot_do_is_refused(self, wanted: Any, device: str, probe: Probe, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            choose_numerics(wanted, torch.device(device), probe)

    @pytest.mark.parametrize("wanted", ["cuda", "mps"])
    def test_a_device_that_is_missing_is_an_error(self, wanted: Any) -> None:
        with pytest.raises(ValueError, match=f"device={wanted} was asked for, but this process sees only: cpu"):
            choose_device(wanted, PLAIN)
        task = Toy()
        with pytest.raises(ValueError, match="use device=auto"):
            loop.start(task, start(task).config.from_dict({"device": wanted}), task.splits(0), PLAIN)

    def test_the_reason_is_in_the_report(self) -> None:
        _, (report,) = train(Toy(), batch_size=40)
        assert report.notes["device"] == "cpu"
        assert report.notes["device_reason"] == "asked for"
        assert report.notes["precision"] == "fp32"

    def test_bf16_on_the_cpu_learns_as_fp32_does(self) -> None:
        settings = {"batch_size": 10, "lr": 0.05, "epochs": 5, "optimizer": "adamw"}
        (exact,), (mixed,) = (train(Toy(), **settings, precision=p)[1][-1:] for p in ("fp32", "bf16"))
        assert mixed.metrics["val_loss"] == pytest.approx(exact.metrics["val_loss"], rel=0.05)
        assert mixed.metrics["val_loss"] != exact.metrics["val_loss"]  # it was computed otherwise

    def test_bf16_on_the_cpu_is_not_slow(self) -> None:
        def cpu_s(precision: str) -> float:
            began = time.process_time()  # what others do on this machine does not count
            train(Toy(), batch_size=10, epochs=20, precision=precision)
            return time.process_time() - began

        exact, mixed = (min(cpu_s(precision) for _ in range(3)) for precision in ("fp32", "bf16"))
        assert mixed < 3 * exact

    def test_fp16_on_the_cpu_is_warned_of_and_works(self) -> None:
        settings = {"batch_size": 10, "lr": 0.05, "epochs": 5, "optimizer": "adamw"}
        exact = train(Toy(), **settings)[1][-1]
        with pytest.warns(UserWarning, match="fp16 on a CPU is slower"):
            run, reports = train(Toy(), **settings, precision="fp16")
        assert run.state.scaler.is_enabled()
        assert reports[-1].metrics["val_loss"] == pytest.approx(exact.metrics["val_loss"], rel=0.05)


BATCH = [torch.zeros(8, 1000, 256), torch.zeros(8)]  # about 8 MiB


class TestB50LimitsOfWorkers:
    def test_open_files(self) -> None:
        with pytest.raises(
            ValueError, match=r"num_workers=4 needs about \d+ open files and the limit is 64.*ulimit -n"
        ):
            check_limits(4, BATCH, Limits(open_files=64, open_now=10, shared_bytes=None))

    def test_shared_memory(self) -> None:
        with pytest.raises(ValueError, match=r"/dev/shm has 64 MiB free.*--shm-size.*num_workers or batch_size"):
            check_limits(4, BATCH, Limits(open_files=None, open_now=10, shared_bytes=64 * 2**20))

    def test_enough_of_both(self) -> None:
        check_limits(4, BATCH, Limits(open_files=256, open_now=30, shared_bytes=2**30))
        check_limits(4, BATCH, Limits(open_files=None, open_now=30, shared_bytes=None))

    def test_this_process(self) -> None:
        limits = Limits.here()
        assert limits.open_now > 0

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
    def test_a_low_limit_is_said_and_one_that_suffices_is_enough(self) -> None:
        program = (
            "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)\n"
            f"sys.path.insert(0, {str(HERE)!r})\n"
            "from toys import *\n"
            "run, reports = train(Toy(600, loaded=True), batch_size=2, num_workers=4)\n"
            "print(len(reports[0].curves['loss']))\n"
        )
        low, enough = (
            subprocess.run([sys.executable, "-c", program, limit], capture_output=True, text=True, timeout=120)
            for limit in ("60", "256")
        )
        assert low.returncode == 1
        assert "ulimit -n" in low.stderr.splitlines()[-1]
        assert (enough.returncode, enough.stdout.split()) == (0, ["300"]), enough.stderr

    @pytest.mark.slow
    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
    def test_trials_leave_no_descriptors_and_no_processes(self) -> None:
        # In a process of its own: in this one, Ray's threads open and close what they need meanwhile.
        program = (
            f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
            "import multiprocessing, os\n"
            "from toys import *\n"
            "for seed in range(6):\n"
            "    train(Toy(loaded=True), batch_size=8, num_workers=2, seed=seed)\n"
            "    print(len(os.listdir('/proc/self/fd')), len(multiprocessing.active_children()))\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        counts, children = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
        # The first trial opens what a process keeps; a descriptor that leaked would come again with every later one.
        assert counts[-1] == counts[1], counts
        assert set(children) == {0}


class TestB52StartMethods:
    def test_what_goes_to_a_worker_can_be_pickled(self) -> None:
        samples = SeededSamples(Noisy(Toy().splits(0).train, 0.1), 3)
        again = pickle.loads(pickle.dumps(samples))
        for ours, theirs in zip(again.__getitems__([(1, 2)]), samples.__getitems__([(1, 2)]), strict=True):
            assert torch.equal(ours, theirs)
        assert pickle.loads(pickle.dumps(collated)) is collated

    @pytest.mark.parametrize("worker_start", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
    def test_every_start_method_gives_the_same_batches(self, worker_start: str) -> None:
        settings = {"batch_size": 8, "epochs": 1, "lr": 0.1}
        here, (expected,) = train(Toy(loaded=True), **settings)
        run, (report,) = train(Toy(loaded=True), **settings, num_workers=2, worker_start=worker_start)
        assert run.state.weights_sha256() == here.state.weights_sha256()
        assert report.metrics == expected.metrics

    @pytest.mark.slow
    def test_where_spawn_is_the_only_one(self) -> None:
        """As on Windows and macOS: every worker imports the main module, and that starts nothing."""
        program = (
            f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
            "import torch.multiprocessing\n"
            "from toys import *\n"
            "from trainable.tasks.digits import Digits\n"
            "if __name__ == '__main__':\n"
            "    torch.multiprocessing.set_start_method('spawn')\n"
            "    for task in (Toy(loaded=True), Digits()):\n"
            "        run, (report,) = train(task, batch_size=64, num_workers=2, resident_gib=0)\n"
            "        print(report.done)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_number_of_workers_never_changes_a_result(num_workers: int) -> None:
    settings = {"batch_size": 8, "epochs": 2, "lr": 0.1}
    here, expected = train(Toy(loaded=True, dropout=0.2), **settings)
    there, reports = train(Toy(loaded=True, dropout=0.2), **settings, num_workers=num_workers)
    assert there.state.weights_sha256() == here.state.weights_sha256()
    assert [report.metrics for report in reports] == [report.metrics for report in expected]


def test_samples_differ_from_epoch_to_epoch_but_not_in_evaluation() -> None:
    run = start(Toy(loaded=True), batch_size=40, epochs=2)
    first, second = (dict(zip(b[2].tolist(), b[0], strict=True)) for e in (0, 1) for b in run.train.epoch(e, 0))
    assert not any(torch.equal(first[index], second[index]) for index in range(40))
    once, twice = ([batch[0] for batch in run.val.epoch(0, 0)] for _ in range(2))
    assert all(map(torch.equal, once, twice))


def test_tensors_too_large_for_the_device_come_through_a_loader() -> None:
    settings = {"batch_size": 8, "epochs": 2, "lr": 0.1}
    resident, expected = train(Toy(dropout=0.2), **settings)
    for num_workers in (0, 2):
        loaded, reports = train(Toy(dropout=0.2), **settings, resident_gib=0, num_workers=num_workers)
        assert loaded.state.weights_sha256() == resident.state.weights_sha256()
        assert reports[-1].metrics == expected[-1].metrics


class Slow(Noisy):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)


def test_waiting_for_data_is_measured_and_advised_on() -> None:
    from trainable.task import Splits

    class SlowToy(Toy):
        def splits(self, seed: int) -> Splits:
            parts = Toy(self.num_samples).splits(seed)
            return Splits(Slow(parts.train, 0.1), parts.val)

    _, (report,) = train(SlowToy(), batch_size=4)
    assert report.data_wait_share > 0.5
    assert "num_workers (now 0)" in report.notes["data_wait"]
    run = start(Toy(), batch_size=4)
    (resident,) = finish(run)
    assert resident.data_wait_share == 0
    assert "data_wait" not in resident.notes
    assert math.isfinite(resident.samples_per_s)
