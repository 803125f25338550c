"""What lr_scan_vs_stock compares with: the scan a careful user writes from the docs of Ray Tune, Optuna and MLflow.

A Tuner with its defaults, a function trainable, OptunaSearch, MLflowLoggerCallback. The loop is written by hand; only
the data split, the order of samples and the model come from `trainable`, so that all sides do equal work.
"""

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

import ray  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from ray import tune  # noqa: E402
from ray.air.integrations.mlflow import MLflowLoggerCallback  # noqa: E402
from ray.tune.search.optuna import OptunaSearch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from trainable.seeding import permutation, seed_everything  # noqa: E402
from trainable.tasks.digits import Digits  # noqa: E402

SEED, BATCH_SIZE, CLIP_NORM, WEIGHT_DECAY = 0, 32, 1.0, 0.01


def weights_sha256(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def train(config):
    """One trial: a metrics report with a checkpoint at the end of each epoch."""
    entered = time.time()
    torch.set_num_threads(1)
    seed_everything(SEED)
    task = Digits()
    model = task.model()
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if not name.endswith("bias")], "weight_decay": WEIGHT_DECAY},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config["lr"], fused=True)
    parameters = [p for group in groups for p in group["params"]]
    splits = task.splits(SEED)
    train_set = TensorDataset(*splits.train)
    val_loader = DataLoader(TensorDataset(*splits.val), batch_size=256)
    ready = time.time()

    for epoch in range(config["epochs"]):
        order = permutation(len(train_set), SEED, epoch).tolist()
        model.train()
        losses = []
        for images, labels in DataLoader(train_set, batch_size=BATCH_SIZE, sampler=order):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        val_loss, num_hits, num_samples = 0.0, 0, 0
        with torch.inference_mode():
            for images, labels in val_loader:
                outputs = model(images)
                val_loss += F.cross_entropy(outputs, labels, reduction="sum").item()
                num_hits += (outputs.argmax(1) == labels).sum().item()
                num_samples += len(labels)
        trained = time.time()
        metrics = {
            "train_loss": torch.stack(losses).mean().item(),
            "val_loss": val_loss / num_samples,
            "val_accuracy": num_hits / num_samples,
            "weights_sha256": weights_sha256(model),
            "entered_at": entered,
            "ready_at": ready,
            "trained_at": trained,
        }
        with tempfile.TemporaryDirectory() as folder:
            saved = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, Path(folder) / "checkpoint.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="work folder; stock.json is written there")
    parser.add_argument("--lrs", type=float, nargs="+", default=[3e-3, 1e-3, 3e-4])
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    out = args.out.resolve()
    imported = time.perf_counter()

    ray.init()
    started = time.perf_counter()

    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-4, 1e-2), "epochs": args.epochs},
        tune_config=tune.TuneConfig(
            metric="val_loss",
            mode="min",
            num_samples=len(args.lrs),
            # A scan of three given values; OptunaSearch refuses grid_search.
            search_alg=OptunaSearch(points_to_evaluate=[{"lr": lr} for lr in args.lrs]),
        ),
        run_config=tune.RunConfig(
            name="stock",
            storage_path=str(out / "ray_results"),
            callbacks=[MLflowLoggerCallback(tracking_uri=f"sqlite:///{out}/mlflow.db", experiment_name="stock")],
        ),
    )
    fit_began_at = time.time()
    results = tuner.fit()
    fit_ended_at, tuned = time.time(), time.perf_counter()
    print(results.get_best_result().config)
    ray.shutdown()
    ended = time.perf_counter()

    if results.num_errors:
        raise SystemExit(f"{results.num_errors} trials failed")
    found = [result.metrics for result in results]
    phases = {
        "imports_s": imported - BEGAN,
        "ray_start_s": started - imported,
        "tune_s": tuned - started,
        # What tune_s is made of; two trials run side by side, so the sums overlap.
        "tune: until the first trial_s": min(m["entered_at"] for m in found) - fit_began_at,
        "tune: trials_s": max(m["trained_at"] for m in found) - min(m["entered_at"] for m in found),
        "tune: after the last trial_s": fit_ended_at - max(m["trained_at"] for m in found),
        "tune: data, sum of trials_s": sum(m["ready_at"] - m["entered_at"] for m in found),
        "tune: training, sum of trials_s": sum(m["trained_at"] - m["ready_at"] for m in found),
        "cleanup_s": ended - tuned,
    }
    lrs = {str(m["config"]["lr"]): {"weights_sha256": m["weights_sha256"], "val_loss": m["val_loss"]} for m in found}
    (out / "stock.json").write_text(json.dumps({"lrs": lrs, "phases": phases}, indent=1))


if __name__ == "__main__":
    main()
