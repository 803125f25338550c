"""The learning rate over a run: a pure function of the optimizer step, plus what plateau remembers.

Extending a run to more epochs is allowed: the remaining steps follow the schedule of the longer run,
as if it had been asked for from the start. Knows nothing of optimizers.
"""

from __future__ import annotations

import math

from trainable.config import TrainConfig

ONE_CYCLE_RISE = 0.3  # share of the run in which one_cycle rises (Smith and Topin 2018, as in torch)
ONE_CYCLE_START = 1 / 25  # where it starts, as a share of lr
ONE_CYCLE_END = 1e-4 / 25  # where it ends


def lr_factor(config: TrainConfig, step: int, total_steps: int, steps_per_epoch: int, num_decays: int) -> float:
    """What lr is multiplied by at optimizer step `step` (from 0) of `total_steps`.

    num_decays: how often plateau has decayed so far.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    done, remaining = step - config.warmup_steps, max(1, total_steps - config.warmup_steps)
    share = min(1.0, done / remaining)
    match config.schedule:
        case "constant":
            return 1.0
        case "cosine":
            return config.lr_min_factor + (1 - config.lr_min_factor) * (1 + math.cos(math.pi * share)) / 2
        case "one_cycle":
            # As torch's OneCycleLR counts: the top is at step rise * steps - 1, the end at the last step.
            top, last = max(ONE_CYCLE_RISE * remaining - 1, 0.0), max(remaining - 1, 1)
            if done < top:
                return _ease(ONE_CYCLE_START, 1.0, done / top)
            return _ease(1.0, ONE_CYCLE_END, min(1.0, (done - top) / max(last - top, 1e-9)))
        case "step":
            return config.decay_factor ** (step // steps_per_epoch // config.decay_epochs)
        case "plateau":
            return max(config.lr_min_factor, config.decay_factor**num_decays)


def _ease(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
