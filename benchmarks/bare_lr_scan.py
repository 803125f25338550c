"""The floor of lr_scan_vs_stock: the same three trials in one bare loop, without Ray, Optuna, MLflow or checkpoints.

The loop is written by hand; only the data split, the order of samples and the model come from `trainable`.
"""

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from trainable.seeding import permutation, seed_everything  # noqa: E402
from trainable.tasks.digits import Digits  # noqa: E402

SEED, BATCH_SIZE, CLIP_NORM, WEIGHT_DECAY = 0, 32, 1.0, 0.01


def weights_sha256(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def train(task, splits, lr, epochs):
    seed_everything(SEED)
    model = task.model()
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if not name.endswith("bias")], "weight_decay": WEIGHT_DECAY},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    parameters = [p for group in groups for p in group["params"]]
    images, labels = splits.train
    for epoch in range(epochs):
        model.train()
        for rows in permutation(len(labels), SEED, epoch).split(BATCH_SIZE):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            val_loss = F.cross_entropy(model(splits.val[0]), splits.val[1]).item()
    return {"weights_sha256": weights_sha256(model), "val_loss": val_loss}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="work folder; bare.json is written there")
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-3, 1e-3, 3e-4])
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    imported = time.perf_counter()
    task = Digits()
    splits = task.splits(SEED)
    loaded = time.perf_counter()
    trials = {str(lr): train(task, splits, lr, args.epochs) for lr in args.lrs}
    trained = time.perf_counter()
    phases = {"imports_s": imported - BEGAN, "data_s": loaded - imported, "training_s": trained - loaded}
    (args.out / "bare.json").write_text(json.dumps({"lrs": trials, "phases": phases}, indent=1))


if __name__ == "__main__":
    main()
