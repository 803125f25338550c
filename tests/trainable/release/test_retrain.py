"""Training one configuration anew over seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from tests.trainable.toys import Toy
from trainable import loop
from trainable.config import TrainConfig
from trainable.release.retrain import train_seeds
from trainable.saving import score_of

CONFIG = TrainConfig(lr=0.05, epochs=3, threads=1, device="cpu", seed=4)


class TestTrainSeeds:
    task: ClassVar[Toy] = Toy(dropout=0.2)

    def test_each_is_the_ordinary_run_of_its_seed_at_its_best(self) -> None:
        splits, said = self.task.splits(4), []
        found = train_seeds(self.task, CONFIG, splits, 3, None, said.append)
        assert sorted(one.seed for one in found) == [4, 5, 6]
        assert [one.score for one in found] == sorted(one.score for one in found)
        assert len(said) == 3
        for one in found:
            run = loop.start(self.task, replace(CONFIG, seed=one.seed, split_seed=4), splits)
            best, weights = float("inf"), {}
            while True:
                report = loop.advance(run)
                if report.metrics["val_loss"] < best:
                    best = report.metrics["val_loss"]
                    weights = {name: value.clone() for name, value in run.state.model.state_dict().items()}
                if report.done:
                    break
            run.close()
            assert one.score == one.metrics["val_loss"] == best
            assert all(torch.equal(one.weights[name], value) for name, value in weights.items())

    def test_what_diverges_is_left_out_and_said(self) -> None:
        said: list[str] = []
        wild = replace(CONFIG, lr=1e30, optimizer="sgd", clip_norm=None)
        with pytest.raises(ValueError, match="every seed diverged"):
            train_seeds(self.task, wild, self.task.splits(4), 2, None, said.append)
        assert [line.partition(": ")[0] for line in said] == ["seed 4", "seed 5"]
        assert all("diverged" in line for line in said)


def test_best_is_by_what_runs_are_ranked_by() -> None:
    metrics = {"val_loss": 0.5, "val_accuracy": 0.9, "train_loss": 0.4}
    assert score_of(metrics, None) == 0.5
    assert score_of(metrics, ("val_accuracy", "max")) == -0.9
    assert score_of(metrics, ("val_accuracy", "min")) == 0.9
    assert score_of(metrics, ("latency_ms", "min")) == 0.5, "no val metric: val_loss"
    assert score_of({"train_loss": 0.4}, ("val_accuracy", "max")) is None, "not evaluated"
