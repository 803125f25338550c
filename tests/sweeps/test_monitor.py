"""python -m sweeps.monitor: no alarm on clean data, drift and decay where they are, latency of like machines only."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from mlflow.tracking import MlflowClient
from PIL import Image, ImageFilter

from sweeps import accept, monitor
from sweeps.monitoring.judgement import DIRECTIONS
from sweeps.release.released import load
from tests.helpers.drivers import environment
from tests.helpers.made import made_sweep
from tests.trainable.tasks.formats import write_images
from trainable.config import TrainConfig
from trainable.release.baseline import columns_of
from trainable.release.decay import decayed
from trainable.release.drift import LEVEL, compared
from trainable.release.outcomes import Outcomes, outcomes_of
from trainable.release.speed import best_of, slowdown
from trainable.tasks.digits import Digits
from trainable.text.corpus import read_text

Monitor = Callable[..., tuple[int, Any, str]]
CHAMPION = "models:/digits@champion"
# A machine that runs other tests beside is none to measure latency on; the tests of latency say what they want.
CALM = ("--latency-factor", "1000")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model of digits that was accepted and registered; MLflow may load no pickle."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        made_sweep(folder / "results", name="made", lrs=(1e-2,), epochs=5)
        assert accept.main(["made"]) == 0
        yield folder


@pytest.fixture
def watching(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Monitor:
    return watcher(home, monkeypatch, capsys)


def watcher(folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Monitor:
    """`python -m sweeps.monitor ARGUMENTS --json` in `folder`: exit code, result or None, and what stderr says."""
    patch.chdir(folder)

    def run(*arguments: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        try:
            code = monitor.main([*arguments, *([] if "--latency-factor" in arguments else CALM), "--json"])
        except SystemExit as error:
            code = int(error.code or 0)
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return run


def digits(num: int = 150) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """Samples that neither trained nor tested the model."""
    images, labels = (part.numpy() for part in Digits().splits(0).val)
    rows = numpy.random.default_rng(0).choice(len(images), num, replace=False)
    return images[rows], labels[rows]


def saved(folder: Path, *arrays: Any) -> str:
    numpy.savez(folder / "fresh.npz", *arrays)
    return str(folder / "fresh.npz")


def test_clean_shifted_and_relabelled_digits(watching: Monitor, home: Path, tmp_path: Path) -> None:
    images, labels = digits()
    code, clean, said = watching(CHAMPION, "--data", saved(tmp_path, images, labels))
    assert code == 0, said
    assert (clean["alarm"], clean["alarms"], clean["num_samples"], clean["labelled"]) == (False, [], 150, True)
    assert clean["registered"]["name"] == "digits"
    assert clean["thresholds"]["level_of_each_check"] == pytest.approx(LEVEL / 2)
    told = json.loads((home / "results/made/accepted/acceptance.json").read_text())
    assert clean["metrics"]["accuracy"]["then"]["mean"] == told["test"]["metrics"]["accuracy"]["mean"]

    moved = numpy.roll(images.reshape(-1, 8, 8), 2, axis=2).reshape(-1, 64)
    code, shifted, _ = watching(CHAMPION, "--data", saved(tmp_path, moved))
    assert code == 1
    assert not shifted["labelled"]
    assert "columns drifted, most of all input" in shifted["verdict"]
    assert shifted["metrics"] == {}
    assert sum(column["level"] == "alarm" for column in shifted["columns"].values()) > 20

    relabelled = numpy.random.default_rng(1).permutation(labels)
    code, wrong, _ = watching("models:/digits/1", "--data", saved(tmp_path, images, relabelled))
    assert code == 1
    assert {column["level"] for column in wrong["columns"].values()} <= {"none", "warn"}
    assert all(alarm.startswith(("loss is", "accuracy is")) for alarm in wrong["alarms"])
    assert wrong["metrics"]["accuracy"]["now"]["mean"] < 0.3


def test_what_is_kept_and_logged(watching: Monitor, home: Path, tmp_path: Path) -> None:
    """A run under the acceptance's, linked to the version; files that no later look overwrites."""
    images, labels = digits()
    data = saved(tmp_path, images, labels)
    before = set((home / "monitoring").glob("*"))
    results = [watching("results/made", "--data", data)[1], watching("models:/digits/latest", "--data", data)[1]]
    new = set((home / "monitoring").glob("*")) - before
    assert len(new) == 2
    kept = [json.loads((folder / "result.json").read_text()) for folder in new]
    assert sorted(one["run_id"] for one in kept) == sorted(one["run_id"] for one in results)
    assert all((folder / "monitor.png").read_bytes().startswith(b"\x89PNG") for folder in new)

    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    run, version = client.get_run(results[1]["run_id"]), client.get_model_version("digits", "1")
    assert run.data.tags["steadysweep.role"] == "monitoring"
    assert run.data.tags["steadysweep.model_version"] == "models:/digits/1"
    assert run.data.tags["mlflow.parentRunId"] == version.run_id
    assert run.data.tags["steadysweep.alarm"] == "false"
    assert run.info.status == "FINISHED"
    assert version.tags["steadysweep.monitored"].startswith("no alarm ")
    assert run.data.metrics["fresh_accuracy"] == results[1]["metrics"]["accuracy"]["now"]["mean"]
    assert run.data.params["psi_alarm"] == "0.2"
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"result.json", "monitor.png"}
    # The same acceptance by another name.
    assert "steadysweep.model_version" not in client.get_run(results[0]["run_id"]).data.tags
    by_run = watching(f"runs:/{version.run_id}/model", "--data", data)
    assert by_run[0] == 0, by_run[2]


def test_in_words(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(home)
    images, labels = digits()
    data = saved(home, 1 - images, labels)
    assert monitor.main([CHAMPION, "--data", data, *CALM]) == 1
    said = capsys.readouterr().out
    assert re.match(r"digits version 1 \(models:/digits@champion\), accepted \d{4}-\d\d-\d\d from made\n", said)
    assert f"fresh data: {data}, 150 samples with labels" in said
    assert re.search(r"drift: [456]\d of 64 columns alarm, \d+ warn", said)
    assert "with p at most 0.005 over all columns" in said
    assert "\nALARM: " in said
    assert "figure   " in said


def test_too_few_samples_say_nothing(watching: Monitor, tmp_path: Path) -> None:
    images, labels = digits(12)
    code, few, _ = watching(CHAMPION, "--data", saved(tmp_path, 1 - images, (labels + 1) % 10))
    assert code == 0
    assert few["columns"] == {}
    assert any("12 samples are too few to tell drift or decay from chance" in remark for remark in few["remarks"])
    assert few["metrics"]["loss"]["method"] is None  # shown, not judged
    code, few, _ = watching(CHAMPION, "--data", saved(tmp_path, 1 - images, labels), "--min-samples", "10")
    assert code == 1


@pytest.mark.parametrize("num", [50, pytest.param(250, marks=pytest.mark.slow)])
def test_false_alarms_of_all_checks_together(num: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 200 resamples of clean data at most 5 % raise any alarm, of drift or of decay."""
    monkeypatch.chdir(home)
    released = load(CHAMPION, f"sqlite:///{home / 'mlflow.db'}")
    told, level = released.told, LEVEL / 2
    clean = Digits().splits(0).val
    columns = columns_of(released.task, clean, told["preparing"])
    config = TrainConfig.from_dict(told["config"])
    every = outcomes_of(released.task, released.model, clean, config, released=True)
    rng, alarms = numpy.random.default_rng(num), 0
    for _ in range(200):
        rows = rng.choice(len(every.weight), num)
        now = Outcomes(every.weight[rows], {name: values[rows] for name, values in every.sums.items()}, num)
        drifts = compared(
            told["baseline"]["features"], {name: values[rows] for name, values in columns.items()}, level=level
        )
        decays = decayed(released.outcomes, now, DIRECTIONS, level=level)
        alarms += any(one.level == "alarm" for one in [*drifts, *decays])
    assert alarms <= 10


def changed(home: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A copy of the model whose acceptance says something else."""
    copy = folder / "model"
    shutil.copytree(home / "results/made/accepted/model", copy)
    told = json.loads((copy / "acceptance.json").read_text())
    change(told)
    (copy / "acceptance.json").write_text(json.dumps(told))
    return str(copy)


def test_a_model_that_became_slow(watching: Monitor, home: Path, tmp_path: Path) -> None:
    def faster_then(told: dict[str, Any]) -> None:
        for quantiles in told["baseline"]["speed"]["latency_ms"].values():
            quantiles["p95"] /= 1e6

    images, labels = digits()
    data = saved(tmp_path, images, labels)
    code, slow, _ = watching(changed(home, tmp_path, faster_then), "--data", data)
    assert code == 1
    assert slow["speed"]["times"] == 3  # it was measured again before it was believed
    assert slow["alarms"][0].startswith("latency of 1 sample(s) at a time is ")
    code, limited, _ = watching(CHAMPION, "--data", data, "--max-latency-ms", "1e-6")
    assert code == 1
    assert "above --max-latency-ms 1e-06" in limited["verdict"]


def test_another_machine_is_not_compared(watching: Monitor, home: Path, tmp_path: Path) -> None:
    def elsewhere(told: dict[str, Any]) -> None:
        told["baseline"]["speed"]["machine"]["processor"] = "abacus"
        for quantiles in told["baseline"]["speed"]["latency_ms"].values():
            quantiles["p95"] /= 1e6

    images, labels = digits()
    code, told, _ = watching(changed(home, tmp_path, elsewhere), "--data", saved(tmp_path, images, labels))
    assert code == 0
    assert told["speed"]["slower"] is None
    assert "abacus" in told["remarks"][0]
    assert told["verdict"] == "no alarm (asked: drift, decay)"


def test_a_busy_machine_is_no_slow_model() -> None:
    """Everything takes four times as long, the fixed arithmetic too; and of two measurements the faster counts."""
    then = {"latency_ms": {"1": {"p50": 1.0, "p95": 1.25}}, "throughput": 1000.0, "reference_ms": 2.0}
    busy = {"latency_ms": {"1": {"p50": 4.0, "p95": 9.0}}, "throughput": 250.0, "reference_ms": 8.0}
    assert slowdown(then, busy) == {"1": pytest.approx(4 / 1.25 / 4)}
    slow = {**busy, "reference_ms": 2.0}
    assert slowdown(then, slow) == {"1": pytest.approx(4 / 1.25)}
    assert slowdown(then, {**slow, "reference_ms": 0.5}) == slowdown(then, slow)  # a faster machine excuses nothing
    assert best_of(slow, then)["latency_ms"] == then["latency_ms"]


def test_a_server_that_is_away(watching: Monitor, home: Path, tmp_path: Path) -> None:
    images, labels = digits()
    away = ("--tracking-uri", "http://127.0.0.1:9")
    code, told, _ = watching("results/made", "--data", saved(tmp_path, images, labels), *away)
    assert code == 0
    assert "run_id" not in told
    assert "MLflow at http://127.0.0.1:9 did not take the result, which is in " in told["remarks"][-1]
    code, _, said = watching(CHAMPION, "--data", saved(tmp_path, images, labels), *away)
    assert code == 2
    assert f"{CHAMPION} cannot be had from http://127.0.0.1:9" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models:/digit@champion"], "there is no models:/digit@champion at sqlite:"),
        (["models:/digits@hero"], "digits has no alias hero; it has champion (version 1)"),
        (["models:/digits/7"], "there is no models:/digits/7 at sqlite:"),
        (["models:/digits/one"], "'models:/digits/one' is no model; give models:/NAME@champion"),
        (["runs:/0123/model"], "runs:/0123/model"),
        (["digits"], "there is no model 'digits'; give models:/NAME@champion"),
        (["monitoring"], "holds no accepted model; accept one with python -m sweeps.accept"),
        ([CHAMPION, "--tracking-uri", "sqlite:///other.db"], "there is no store sqlite:"),
        ([CHAMPION, "--data", "gone.npz"], "gone.npz is not there"),
        ([CHAMPION, "--alpha", "2"], "--alpha 2 must be above 0 and below 0.5"),
        ([CHAMPION, "--psi-warn", "0.3"], "--psi-warn 0.3 must be above 0 and at most --psi-alarm 0.2"),
        ([CHAMPION, "--min-samples", "few"], "--min-samples 'few' must be a whole number"),
        ([CHAMPION, "--max-latency-ms", "0"], "--max-latency-ms 0 must be above 0"),
        ([CHAMPION, "--metric", "accuracy"], "--metric 'accuracy' must be NAME:max"),
        ([CHAMPION, "--metric", "f1:max"], "--metric f1: no such metric; the task has loss, accuracy"),
        ([CHAMPION, "--out", "mlflow.db"], "--out mlflow.db cannot be written"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, watching: Monitor, home: Path, tmp_path: Path) -> None:
    (home / "monitoring").mkdir(exist_ok=True)
    before = set(home.rglob("*.json"))
    data = [] if "--data" in arguments else ["--data", saved(tmp_path, *digits(40))]
    code, told, said = watching(*arguments, *data)
    assert (code, told) == (2, None)
    assert words in said
    assert len(said.splitlines()) == 1
    assert set(home.rglob("*.json")) == before


def test_a_model_of_somebody_else(watching: Monitor, home: Path, tmp_path: Path) -> None:
    folder = Path(changed(home, tmp_path, lambda told: told.update(baseline=None, remarks=["no room"])))
    data = saved(tmp_path, *digits(40))
    assert (
        "was accepted without a baseline, so there is nothing to compare with: no room"
        in watching(str(folder), "--data", data)[2]
    )
    (folder / "acceptance.json").unlink()
    assert "was not accepted by python -m sweeps.accept" in watching(str(folder), "--data", data)[2]


# What follows is slow: two more models are trained and accepted.


def alarms_of(watching: Monitor, model: str, files: Mapping[str, Path]) -> dict[str, list[str]]:
    """File -> what its alarms are about, in one word each."""
    found = {}
    for name, path in files.items():
        code, told, said = watching(model, "--data", str(path))
        assert code in (0, 1), said
        assert (code == 1) is told["alarm"]
        found[name] = sorted({"drift" if "drifted" in alarm else "decay" for alarm in told["alarms"]})
    return found


@pytest.mark.slow
def test_a_table(launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rng = numpy.random.default_rng(0)
    size, place = rng.normal(100, 20, 1400), rng.choice(["north", "south"], 1400)
    frame = pandas.DataFrame({"size": size, "place": place})
    frame["price"] = 3 * frame["size"] + 50 * (frame["place"] == "south") + rng.normal(0, 5, 1400)
    frame[:1000].to_csv("train.csv", index=False)
    settings = {"path": str(launch_folder / "train.csv"), "target": "price"}
    made_sweep(Path("results"), name="table", task="table", settings=settings, metric="val_loss", mode="min", epochs=10)
    assert accept.main(["table"]) == 0
    Path("train.csv").unlink()  # where the model is watched, the training data are not
    fresh = frame[1000:]
    files = {
        "clean": fresh,
        "shifted": fresh.assign(size=fresh["size"] + 30).drop(columns="price"),
        "new place": fresh.assign(place="west").drop(columns="price"),
        "relabelled": fresh.assign(price=rng.permutation(fresh["price"])),
    }
    paths = {name: launch_folder / f"{name}.csv" for name in files}
    for name, rows in files.items():
        rows.to_csv(paths[name], index=False)
    assert alarms_of(watcher(launch_folder, monkeypatch, capsys), "results/table", paths) == {
        "clean": [],
        "shifted": ["drift"],
        "new place": ["drift"],
        "relabelled": ["decay"],
    }
    # As a user's own process sees it.
    command = [sys.executable, "-m", "sweeps.monitor", "results/table", "--data", str(paths["relabelled"])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "ALARM: loss is " in done.stdout


@pytest.mark.soak
def test_images(launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of class folders and without; darker and blurred ones have drifted; what cannot be read is a remark."""
    root = write_images(launch_folder / "images", 40)
    settings = {"root": str(root), "arch": "squeezenet1_1", "size": 32, "on_unreadable": "skip"}
    made_sweep(Path("results"), name="images", task="image_folder", settings=settings, metric="val_loss", mode="min")
    assert accept.main(["images"]) == 0
    shutil.move(root, launch_folder / "clean")
    shutil.copytree("clean", "dark")
    for path in Path("dark").rglob("*.*"):
        Image.open(path).point(lambda value: value // 3).filter(ImageFilter.GaussianBlur(2)).save(path)
    (launch_folder / "clean/digit0/0.png").write_bytes(b"torn")
    watching = watcher(launch_folder, monkeypatch, capsys)
    paths = {name: launch_folder / name for name in ("clean", "dark", "clean/digit0")}
    assert alarms_of(watching, "results/images", paths)["dark"] == ["drift"]
    code, told, _ = watching("results/images", "--data", "clean")
    assert code == 0
    assert told["remarks"] == ["1 of 112 images cannot be read and are left out: digit0/0.png"]
    assert told["num_samples"] == 111
    assert watching("results/images", "--data", "clean/digit0")[1]["labelled"] is False


@pytest.mark.slow
def test_a_text(launch_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"context": 32, "width": 32, "depth": 1}
    made_sweep(Path("results"), name="text", task="char_lm", settings=settings, metric="val_loss", mode="min", epochs=4)
    assert accept.main(["text"]) == 0
    text = read_text(None)
    fresh = text[int(0.8 * len(text)) : int(0.9 * len(text))]
    mixer = random.Random(0)
    mixed = re.sub(r"\S+", lambda word: "".join(mixer.sample(word[0], len(word[0]))), fresh)
    paths = {name: launch_folder / f"{name}.txt" for name in ("clean", "capitals", "mixed")}
    for path, content in zip(paths.values(), (fresh, fresh.upper(), mixed), strict=True):
        path.write_text(content)
    found = alarms_of(watcher(launch_folder, monkeypatch, capsys), "models:/char_lm@champion", paths)
    assert found["clean"] == []
    assert "drift" in found["capitals"]
    assert found["mixed"] == ["decay"]  # the same characters, in words in which they stand in another order


def test_no_torch_before_it_is_needed() -> None:
    """Flags and help cost no more than they must."""
    code = "import sys, sweeps.monitor as m; m.parser(); assert not {'torch', 'mlflow', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
