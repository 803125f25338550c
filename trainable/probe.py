"""python -m trainable.probe: what trials of a task would cost, from a few steps of each, for `--plan`.

In a process of its own, as the driver has no torch. Trains no trial and writes nothing. Knows no sweeps.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from trainable.config import TrainConfig
from trainable.task import Splits, Task, load_task

if TYPE_CHECKING:
    from trainable.training import Training

WARM_UP, MOST_STEPS, MOST_S = 3, 50, 1.0  # steps that do not count; those that do, or until so many seconds


def probe(task: Task, config: TrainConfig, splits: Splits) -> dict[str, Any]:
    """Seconds of a step and of an evaluation, steps of the whole run, bytes of the checkpoints that stay of it,
    trained parameters.

    The steps are the loop's own, on samples in the run's order. Raises ValueError for what the loop refuses.
    """
    import torch

    from trainable import loop, saving
    from trainable.step import take_step

    run = loop.start(task, config, splits)
    try:
        run.state.train_mode()
        stream = run.train.epoch(0, 0)
        steps, began = 0, time.perf_counter()
        for batch in stream:
            take_step(run, batch)
            run.state.progress.step += 1
            steps += 1
            if steps == WARM_UP:
                _wait(run)
                began = time.perf_counter()
            if steps >= WARM_UP + MOST_STEPS or (steps > WARM_UP and time.perf_counter() - began > MOST_S):
                break
        _wait(run)
        counted = steps - WARM_UP if steps > WARM_UP else steps
        step_s = (time.perf_counter() - began) / counted
        buffer = io.BytesIO()
        torch.save(run.state.save(), buffer)
        reports = -(-run.total_steps // (config.report_steps or len(run.train.sizes)))
        return {
            "device": run.notes["device"],
            "num_params": sum(parameter.numel() for parameter in run.state.trained),
            "step_s": step_s,
            "steps": run.total_steps,
            "eval_s": _evaluation_s(run),
            "evaluations": -(-reports // config.eval_every),
            "checkpoint_bytes": buffer.tell() * min(reports, saving.NUM_NEWEST + 1),
        }
    finally:
        run.close()


def _evaluation_s(run: Training) -> float:
    """Of all val samples, from as many of them as a short time holds."""
    import torch

    began, seen = time.perf_counter(), 0
    run.state.evaluated.eval()
    with torch.inference_mode(), run.autocast():
        for batch in run.val.epoch(0, 0):
            run.task.loss(run.task.predict(run.state.evaluated, batch), batch).item()
            seen += len(batch[0])
            if time.perf_counter() - began > MOST_S:
                break
    return (time.perf_counter() - began) * sum(run.val.sizes) / max(1, seen)


def _wait(run: Training) -> None:
    """Until the device has done what it was given."""
    if run.state.interval.losses:
        run.state.interval.losses[-1].cpu()


def main(arguments: list[str]) -> int:
    """One argument, a JSON object: `task`; `shared` (settings and train of the sweep), `metrics` and `trials` (a list
    of settings and train); the last line printed is one too: `findings`, `refused` (None, or why no trial could be
    trained), `gpus` of this machine, `trials` (see `probe`); or an `error` in words."""
    import torch

    from trainable.checks.before import Refused, ask_before

    asked = json.loads(arguments[0])
    gpus = torch.cuda.device_count()
    splits = functools.lru_cache(maxsize=1)(lambda task, seed: task.splits(seed))
    try:
        task = load_task(asked["task"], asked["shared"]["settings"])
        config = TrainConfig.from_dict(asked["shared"]["train"])
        try:
            findings = ask_before(task, config, lambda: splits(task, config.data_seed), asked["metrics"])
        except Refused as error:
            print(json.dumps({"findings": [], "refused": str(error), "gpus": gpus, "trials": []}))
            return 0
        trials = []
        for one in asked["trials"]:
            own, train = load_task(asked["task"], one["settings"]), TrainConfig.from_dict(one["train"])
            trials.append(probe(own, train, splits(own, train.data_seed)))
    except ValueError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    except Exception as error:  # the task's own code may raise anything; this is the edge of its process
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    plain = [dataclasses.asdict(finding) for finding in findings]
    print(json.dumps({"findings": plain, "refused": None, "gpus": gpus, "trials": trials}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
