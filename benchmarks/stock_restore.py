"""What Ray Tune's own `Tuner.restore` does under the kills that tests/faults does to ours, side by side.

Three trials of three epochs on digits, one at a time. Both are killed (SIGKILL of the driver's process group) after
the same numbers of trained epochs and gone on with each time; in a second run the first trial's weights become NaN in
its second epoch. Counted is what was really trained and what MLflow then shows. The bars are ours; stock has none.
The last line printed is one JSON object. Exit code 1 if a bar is missed.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.helper import MOODY, STEPS_PER_EPOCH  # noqa: E402
from tests.helpers.drivers import environment, kill  # noqa: E402

LRS = ("3e-3", "1e-3", "3e-4")
EPOCHS = 3
SLEEP_S = 0.4  # how much longer an epoch is made, so that a kill can hit one
NAN_EPOCH = 1  # counted from 0
TIMEOUT_S = 240


def stock(place: Path, nan: bool) -> None:
    """The stock side, in a process of its own: a careful user's script, restored where that is possible."""
    import ray
    import torch
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
    from ray.tune.search.optuna import OptunaSearch

    from trainable.seeding import permutation, seed_everything
    from trainable.tasks.digits import Digits

    def train(config):
        torch.set_num_threads(1)
        seed_everything(0)
        task = Digits()
        model = task.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        splits, first = task.splits(0), 0
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as folder:
                saved = torch.load(Path(folder) / "checkpoint.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["epoch"] + 1
        for epoch in range(first, EPOCHS):
            if nan and config["lr"] == float(LRS[0]) and epoch == NAN_EPOCH:
                with torch.no_grad():
                    next(model.parameters()).fill_(float("nan"))
            model.train()
            for batch in permutation(len(splits.train[0]), 0, epoch).split(32):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(splits.train[0][batch]), splits.train[1][batch])
                loss.backward()
                optimizer.step()
            time.sleep(SLEEP_S)
            with (place / "epochs.log").open("a") as file:
                file.write(f"{config['lr']:g} {epoch}\n")
            model.eval()
            with torch.inference_mode():
                val_loss = torch.nn.functional.cross_entropy(model(splits.val[0]), splits.val[1]).item()
            with tempfile.TemporaryDirectory() as folder:
                saved = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(saved, Path(folder) / "checkpoint.pt")
                tune.report({"val_loss": val_loss}, checkpoint=tune.Checkpoint.from_directory(folder))

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    folder = place / "ray_results/stock"
    if tune.Tuner.can_restore(str(folder)):
        print("restored", flush=True)
        tuner = tune.Tuner.restore(str(folder), trainable=train, resume_unfinished=True, restart_errored=True)
    else:
        print("begun", flush=True)
        tuner = tune.Tuner(
            train,
            param_space={"lr": tune.loguniform(1e-4, 1e-2)},
            tune_config=tune.TuneConfig(
                metric="val_loss",
                mode="min",
                num_samples=len(LRS),
                max_concurrent_trials=1,
                search_alg=OptunaSearch(points_to_evaluate=[{"lr": float(lr)} for lr in LRS]),
                scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1) if nan else FIFOScheduler(),
            ),
            run_config=tune.RunConfig(
                name="stock",
                storage_path=str(place / "ray_results"),
                callbacks=[MLflowLoggerCallback(tracking_uri=f"sqlite:///{place}/mlflow.db", experiment_name="stock")],
            ),
        )
    results = tuner.fit()
    (place / "stock.json").write_text(json.dumps([result.metrics["config"]["lr"] for result in results]))
    ray.shutdown()


def command(side: str, place: Path, nan: bool) -> list[str]:
    if side == "stock":
        return [str(Path(__file__).resolve()), "--stock", str(place), *(["--nan"] if nan else [])]
    if (place / "results/ours/ledger.db").exists():
        return ["-m", "sweeps.lr_scan", "--resume", "ours", "--trials-at-once", "1", "--cpus-per-trial", "1"]
    return [
        *("-m", "sweeps.lr_scan", "--name", "ours", "--lrs", *LRS, "--epochs", str(EPOCHS), "--task", MOODY),
        *("--set", f"task.sleep_s={SLEEP_S / STEPS_PER_EPOCH}", "--set", "task.step_log=steps.log"),
        *("--trials-at-once", "1", "--cpus-per-trial", "1"),
    ]


def epochs_trained(side: str, place: Path) -> float:
    file, per_epoch = ("epochs.log", 1) if side == "stock" else ("steps.log", STEPS_PER_EPOCH)
    return (place / file).read_bytes().count(b"\n") / per_epoch if (place / file).is_file() else 0.0


@contextlib.contextmanager
def driver(side: str, place: Path, nan: bool):
    crash = f"step:{NAN_EPOCH * STEPS_PER_EPOCH + 1}:nan" if nan else ""
    told = {"STEADYSWEEP_CRASH": crash, "STEADYSWEEP_CRASH_STATE": str(place / "counts")}
    with (place / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command(side, place, nan)],
            cwd=place,
            env={**environment(), **told},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill(process)


def go_through(side: str, kills_at: list[float], nan: bool) -> dict[str, float]:
    """Train, killed whenever so many epochs are done; what was trained, and what MLflow shows in the end."""
    place = Path(tempfile.mkdtemp(prefix=f"{side}-"))
    try:
        for epochs in kills_at:
            with driver(side, place, nan) as process:
                until = time.monotonic() + TIMEOUT_S
                while epochs_trained(side, place) < epochs and process.poll() is None and time.monotonic() < until:
                    time.sleep(0.01)
                kill(process)
        with driver(side, place, nan) as process:
            code = process.wait(timeout=TIMEOUT_S)
            assert code == 0 or nan, (place / "output.txt").read_text()[-4000:]
        return counted_nan(side, place) if nan else counted(side, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def counted(side: str, place: Path) -> dict[str, float]:
    with contextlib.closing(sqlite3.connect(place / "mlflow.db")) as store:
        parents = (
            store.execute("select count(*) from tags where value = 'sweep'").fetchone()[0] if side == "ours" else 0
        )
        runs = store.execute("select count(*) from runs").fetchone()[0] - parents
        running = store.execute("select count(*) from runs where status = 'RUNNING'").fetchone()[0]
        name = "val_loss" if side == "stock" else "loss"
        shown = store.execute(
            "select count(*) from (select distinct run_uuid, step from metrics where key = ?)", (name,)
        )
        points = shown.fetchone()[0] / (1 if side == "stock" else STEPS_PER_EPOCH)
    said = (place / "output.txt").read_text(errors="replace")
    if side == "stock":
        ended = len(json.loads((place / "stock.json").read_text()))
    else:
        ended = len(json.loads((place / "results/ours/result.json").read_text())["trials"])
    return {
        "epochs trained": round(epochs_trained(side, place), 1),
        "trials in the answer": ended,
        "MLflow runs of trials": runs,
        "MLflow runs left RUNNING": running,
        "epochs in MLflow": round(points, 1),
        "begun from nothing": said.count("begun") if side == "stock" else 1,
    }


def counted_nan(side: str, place: Path) -> dict[str, float]:
    """Of the trial that became NaN."""
    with contextlib.closing(sqlite3.connect(place / "mlflow.db")) as store:
        nans = store.execute("select count(*) from metrics where is_nan = 1").fetchone()[0]
        first = "select run_uuid from params where key like '%lr' and cast(value as real) = ?"
        finished = f"select count(*) from runs where status = 'FINISHED' and run_uuid in ({first})"
        num_finished = store.execute(finished, (float(LRS[0]),)).fetchone()[0]
    if side == "stock":
        trained = (place / "epochs.log").read_text().split().count(f"{float(LRS[0]):g}")
    else:
        trained = json.loads((place / "results/ours/result.json").read_text())["trials"][0]["epochs"]
    return {
        "epochs after it was NaN": trained - NAN_EPOCH - 1,
        "NaN in MLflow's metrics": nans,
        "shown as FINISHED": num_finished,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one kill and no NaN: less than a minute")
    parser.add_argument("--stock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--nan", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stock:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stock(args.stock, args.nan)
        return 0
    kills_at = [4.0] if args.quick else [2.0, 4.0, 7.0]
    cases = {f"SIGKILL after {', '.join(f'{epochs:g}' for epochs in kills_at)} epochs": (kills_at, False)}
    if not args.quick:
        cases["NaN in the second epoch of the first trial (stock: with ASHA)"] = ([], True)
    ours_killed: dict[str, float] = {}
    for words, (kills, nan) in cases.items():
        found = {side: go_through(side, kills, nan) for side in ("stock", "ours")}
        ideal = {"epochs trained": 9, "trials in the answer": 3, "MLflow runs of trials": 3}
        ideal |= {"epochs in MLflow": 9, "begun from nothing": 1}
        print(f"\n{words}\n{'':<28}{'stock':>8}{'ours':>8}{'ideal':>8}")
        for name in found["ours"]:
            print(f"{name:<28}{found['stock'][name]:>8g}{found['ours'][name]:>8g}{ideal.get(name, 0):>8g}")
        sys.stdout.flush()
        ours_killed = ours_killed or found["ours"]
    redone = round(ours_killed["epochs trained"] - 9, 1)
    bars = {
        "restore_epochs_redone_by_ours": {"value": redone, "bar": len(kills_at), "met": redone <= len(kills_at)},
        "restore_runs_doubled_or_running": {
            "value": (wrong := ours_killed["MLflow runs of trials"] - 3 + ours_killed["MLflow runs left RUNNING"]),
            "bar": 0,
            "met": wrong == 0,
        },
    }
    print(f"\n{json.dumps(bars)}")
    return 0 if all(bar["met"] for bar in bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
