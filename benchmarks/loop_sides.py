"""The loops that `loop.py` times: ours, and what a user would write or install instead.

Each trains the same MLP on the same samples in the same order, with fused AdamW and the same clipping, evaluates
after every epoch, and returns how long that took and the final weights. Each is written as its own docs would have it.
"""

import importlib.util
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from trainable import loop
from trainable.config import TrainConfig
from trainable.seeding import permutation, seed_everything
from trainable.tasks.digits import Digits

LR, WEIGHT_DECAY, CLIP, BATCH, EVAL_BATCH = 1e-3, 0.01, 1.0, 64, 256
TASK = Digits()


@dataclass
class Outcome:
    seconds: float
    weights: dict[str, Tensor]


def ours(num_epochs: int, **settings) -> Outcome:
    """`start` builds the model and is not counted, as nobody's building is; everything `advance` does is."""
    config = TrainConfig(
        lr=LR, weight_decay=WEIGHT_DECAY, clip_norm=CLIP, batch_size=BATCH, epochs=num_epochs, device="cpu", threads=1,
        **{"decay_all": True, **settings},
    )  # fmt: skip
    run = loop.start(TASK, config, splits())
    began = time.perf_counter()
    while not loop.advance(run).done:
        pass
    seconds = time.perf_counter() - began
    run.close()
    return Outcome(seconds, run.state.model.state_dict())


def ours_by_default(num_epochs: int) -> Outcome:
    """With our default of no weight decay on biases: a second parameter group, and so a second fused update."""
    return ours(num_epochs, decay_all=False)


def by_hand(num_epochs: int) -> Outcome:
    """Tensors in memory, indexed by a permutation; the loss is added up without `.item()`."""
    model, optimizer = _model()
    (images, labels), (val_images, val_labels) = splits().train, splits().val
    began = time.perf_counter()
    for epoch in range(num_epochs):
        model.train()
        total = torch.zeros(())
        for rows in permutation(len(images), 0, epoch).split(BATCH):
            x, y = images[rows], labels[rows]
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            total += loss.detach() * len(x)
        _report(total, len(images))
        _evaluate(model, zip(val_images.split(EVAL_BATCH), val_labels.split(EVAL_BATCH), strict=True), len(val_images))
    return Outcome(time.perf_counter() - began, model.state_dict())


def by_hand_with_loader(num_epochs: int) -> Outcome:
    """The tutorial's loop: a DataLoader over a TensorDataset."""
    model, optimizer = _model()
    train, val = _loaders()
    began = time.perf_counter()
    for epoch in range(num_epochs):
        train.sampler.epoch = epoch
        model.train()
        total = torch.zeros(())
        for x, y in train:
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            total += loss.detach() * len(x)
        _report(total, len(train.dataset))
        _evaluate(model, val, len(val.dataset))
    return Outcome(time.perf_counter() - began, model.state_dict())


def with_accelerate(num_epochs: int) -> Outcome:
    from accelerate import Accelerator

    model, optimizer = _model()
    train, val = _loaders()
    accelerator = Accelerator(cpu=True)
    sampler = train.sampler
    model, optimizer, train, val = accelerator.prepare(model, optimizer, train, val)
    began = time.perf_counter()
    for epoch in range(num_epochs):
        sampler.epoch = epoch
        model.train()
        total = torch.zeros(())
        for x, y in train:
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            total += loss.detach() * len(x)
        _report(total, len(train.dataset))
        _evaluate(model, val, len(val.dataset))
    return Outcome(time.perf_counter() - began, accelerator.unwrap_model(model).state_dict())


def with_lightning(num_epochs: int) -> Outcome:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = _model()

        def training_step(self, batch, _):
            return functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _):
            outputs = self.model(batch[0])
            self.log("val_loss", functional.cross_entropy(outputs, batch[1]))
            self.log("val_accuracy", (outputs.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            return self.optimizer

        def on_train_epoch_start(self) -> None:
            train.sampler.epoch = self.current_epoch

    module = Module()
    train, val = _loaders()
    trainer = lightning.Trainer(
        max_epochs=num_epochs, accelerator="cpu", gradient_clip_val=CLIP, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    began = time.perf_counter()
    trainer.fit(module, train, val)
    return Outcome(time.perf_counter() - began, module.model.state_dict())


INSTALLED = {name: importlib.util.find_spec(name) is not None for name in ("accelerate", "lightning")}


class _EpochOrder(torch.utils.data.Sampler):
    """The same order of samples as everybody's."""

    def __init__(self, num_samples: int) -> None:
        self.epoch, self._num_samples = 0, num_samples

    def __iter__(self):
        return iter(permutation(self._num_samples, 0, self.epoch).tolist())

    def __len__(self) -> int:
        return self._num_samples


def _loaders() -> tuple[DataLoader, DataLoader]:
    train, val = TensorDataset(*splits().train), TensorDataset(*splits().val)
    return DataLoader(train, BATCH, sampler=_EpochOrder(len(train))), DataLoader(val, EVAL_BATCH)


def splits():
    if not hasattr(splits, "found"):
        splits.found = TASK.splits(0)
    return splits.found


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.use_deterministic_algorithms(False)  # a user's process has torch's defaults; ours sets its own at start
    seed_everything(0)
    model = TASK.model()
    return model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)


def _report(total: Tensor, num_samples: int) -> float:
    return (total / num_samples).item()


def _evaluate(model: nn.Module, batches, num_samples: int) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        loss, hits = torch.zeros(()), torch.zeros((), dtype=torch.long)
        for x, y in batches:
            outputs = model(x)
            loss += functional.cross_entropy(outputs, y, reduction="sum")
            hits += (outputs.argmax(1) == y).sum()
    return loss.item() / num_samples, hits.item() / num_samples
