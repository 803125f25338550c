"""python -m sweeps.accept NAME: the winner on the test samples, once; exported, loaded back, registered.

The one place that opens the test samples. That they are opened is written down before the first of them is read.
"""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.cli import Parser, fail, number_of
from sweeps.command import errors_in_words, leave
from sweeps.questions import judge_of
from sweeps.record.ledger import Ledger
from sweeps.record.store import Folder, checked_results, existing_sweep
from sweeps.release.acceptance import Accepted, accepted_of, begun, put_in_place, recover
from sweeps.release.candidate import Candidate, Weights, best_weights, candidate_of, check_data, model_of, of_task
from sweeps.release.evidence import baseline, errors, export, released_model
from sweeps.release.openings import note_opening, note_samples, openings_of
from sweeps.release.packaging import Packed, check_room
from sweeps.release.registry import NotReachable, Registered, checked_model_name, default_model_name, register
from sweeps.release.telling import definition_told, metrics_told, weights_told
from sweeps.release.words import load_words, refusal, report_of, watch_words
from sweeps.reporting.commands import command_on
from sweeps.running.failures import StorageLost, storage_problem
from sweeps.tracking.moved import present_store
from sweeps.tracking.tracker import resolve_uri
from trainable.crashpoint import crash_point
from trainable.task import Task

if TYPE_CHECKING:
    from trainable.task import Examples, Splits

ROOM = 32 * 2**20  # bytes on the disk before the test samples are opened


@dataclass(frozen=True)
class Ready:
    """All that can be had of a candidate without its test samples. weights: the first are those to accept; the
    others, of further seeds, are measured beside them."""

    candidate: Candidate
    weights: Sequence[Weights]
    splits: Splits
    data: str
    changed: Sequence[str]


def parser() -> Parser:
    flags = Parser(prog="python -m sweeps.accept", description=__doc__.partition("\n")[0])
    add = flags.add_argument
    add("name", help="the sweep's name")
    add("--results", metavar="DIR", default="results", help="where sweeps are kept (default: results)")
    add("--trial", metavar="N", help="another trial than the winner")
    add("--retrain", action="store_true", help="train its configuration anew, instead of taking its best checkpoint")
    add(
        "--seeds",
        metavar="K",
        help="with --retrain: with so many seeds; the best on validation is accepted (default: 1)",
    )
    add("--again", action="store_true", help="open the test samples once more; it is recorded")
    add("--partial", action="store_true", help="accept from a sweep that is not finished; it is recorded")
    add("--allow-drift", action="store_true", help="accept though the task's code or its data changed; it is recorded")
    add("--model", metavar="NAME", help="its name in MLflow's registry (default: the task's, with its file's)")
    add("--register", action="store_true", help="register what was accepted before; opens nothing")
    add("--tracking-uri", metavar="URI", help="another store than the sweep's own")
    add("--json", action="store_true", help="print all of it as JSON on stdout, and nothing else there")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 accepted and registered, 1 not registered or the disk is full, 2 bad
    input)."""
    with errors_in_words():
        asked = vars(parser().parse_args(arguments))
        _check(asked)
        folder = existing_sweep(checked_results(Path(asked["results"])), asked["name"])
        uri = resolve_uri(asked["tracking_uri"], Path.cwd()) if asked["tracking_uri"] else None
        try:
            with folder.owned():
                accepted, registered, problem = _run(folder, asked, uri)
        except KeyboardInterrupt:
            fail(f"interrupted; whether the test samples of {folder.name} were opened stands in its ledger", code=130)
        except Exception as error:  # what a full disk raises depends on who was writing
            lost = None if isinstance(error, ValueError) else storage_problem(error)
            if lost is None:
                raise
            raise StorageLost(
                f"{folder.path} could not be written: {lost}; make room, then run this again: whether the test samples "
                "were opened by then stands in the ledger"
            ) from error
    _print(accepted, registered, as_json=asked["json"])
    if problem is not None:
        print(
            f"not registered: {problem}; the model stays in {accepted.model}; "
            f"register it later with: {_later(folder, asked)}",
            file=sys.stderr,
        )
    return 0 if problem is None else 1


def _later(folder: Folder, asked: Mapping[str, Any]) -> str:
    given = {"--model": asked["model"], "--tracking-uri": asked["tracking_uri"]}
    flags = (f" {flag} {shlex.quote(value)}" for flag, value in given.items() if value)
    return f"{command_on(folder, 'accept')} --register{''.join(flags)}"


def _check(asked: dict[str, Any]) -> None:
    """What is wrong with the flags alone; numbers become numbers."""
    for flag, least in (("trial", 0), ("seeds", 1)):
        if asked[flag] is not None:
            asked[flag] = number_of(asked, flag, int)
            if asked[flag] < least:
                raise ValueError(f"--{flag} {asked[flag]} must be at least {least}")
    if asked["seeds"] is not None and not asked["retrain"]:
        raise ValueError("--seeds says how often to train, and nothing is trained without --retrain; give both")
    if asked["register"]:
        given = [
            flag for flag in ("trial", "retrain", "again", "partial", "allow_drift") if asked[flag] not in (None, False)
        ]
        if given:
            flags = " and ".join(f"--{flag.replace('_', '-')}" for flag in given)
            raise ValueError(f"--register sends what was accepted before, and {flags} is about accepting; leave it out")
    if asked["model"] is not None:
        checked_model_name(asked["model"])


def _run(folder: Folder, asked: Mapping[str, Any], uri: str | None) -> tuple[Accepted, Registered | None, str | None]:
    """What was accepted, where it is registered, and why it is not."""
    try:
        ledger = Ledger(folder.ledger)
    except Exception as error:  # a foreign or damaged database: Optuna's and SQLite's errors are many
        first = str(error).partition("\n")[0]
        raise ValueError(f"{folder.name}: its ledger cannot be read ({type(error).__name__}: {first})") from error
    try:
        recover(folder)
        if asked["register"]:
            accepted = accepted_of(folder)
            if not accepted.path.is_dir():
                raise ValueError(f"{folder.name}: nothing was accepted yet; leave --register out to do that first")
        else:
            accepted = _accept(folder, ledger, asked)
        uri = uri or present_store(folder, ledger)
        told = accepted.told
        name = asked["model"] or default_model_name(told["task"], told["task_settings"])
        _say(f"registering it as {name} at {uri}")
        try:
            registered = register(accepted, uri, name, ledger.attribute("mlflow_run_id"))
        except NotReachable as error:
            return accepted, None, str(error)
        accepted.note_registered(asdict(registered))
        return accepted, registered, None
    finally:
        ledger.close()


def _accept(folder: Folder, ledger: Ledger, asked: Mapping[str, Any]) -> Accepted:
    seen, there = openings_of(ledger), accepted_of(folder)
    if seen and not asked["again"]:
        place = str(there.path) if there.path.is_dir() else None
        raise ValueError(
            refusal(seen, folder.name, place, registered=place is not None and there.registered is not None)
        )
    ready = _ready(folder, ledger, asked)
    candidate = ready.candidate
    models = [model_of(candidate, one) for one in ready.weights]
    new = begun(folder)
    _say("exporting the model, and loading it back in a process of its own")
    packed = export(new.model, candidate, models[0], ready.splits.val)
    _open(folder, ledger, ready, models, new, packed)
    return put_in_place(folder, new)


def _ready(folder: Folder, ledger: Ledger, asked: Mapping[str, Any]) -> Ready:
    """Everything that can be refused before the test samples are opened."""
    candidate = candidate_of(
        folder,
        ledger,
        judge_of(ledger),
        trial=asked["trial"],
        partial=asked["partial"],
        allow_drift=asked["allow_drift"],
    )
    task, config = candidate.task, candidate.config
    if type(task).test is Task.test:
        raise ValueError(
            f"task {candidate.task_spec!r} has no test part, so nothing can be accepted on it; give it a method "
            "test(seed) with samples that neither train nor val has"
        )
    from trainable.device import configure_backends
    from trainable.release.retrain import train_seeds

    configure_backends(config)
    splits = of_task("splits", lambda: task.splits(config.data_seed))
    data, changed = check_data(candidate, ledger, splits, allow_drift=asked["allow_drift"])
    if not asked["retrain"]:
        return Ready(candidate, [best_weights(folder, candidate)], splits, data, changed)
    _say(f"training trial {candidate.record.number}'s configuration anew, with {asked['seeds'] or 1} seed(s)")
    trained = train_seeds(task, config, splits, asked["seeds"] or 1, candidate.ranked_by, _say)
    weights = [Weights(one.weights, {"step": one.step, "seed": one.seed}) for one in trained]
    return Ready(candidate, weights, splits, data, changed)


def _open(folder: Folder, ledger: Ledger, ready: Ready, models: Sequence[Any], new: Accepted, packed: Packed) -> None:
    """Open the test samples, measure, and write down all that is to be said of the model."""
    from trainable.data import num_samples_of
    from trainable.release.outcomes import fingerprint_of, outcomes_of

    candidate, config, task = ready.candidate, ready.candidate.config, ready.candidate.task
    val = outcomes_of(task, models[0], ready.splits.val, config)
    preparing = of_task("preparing", lambda: task.preparing(config.data_seed))
    check_room(new.model, ROOM)  # what is found out must not be lost
    opening = note_opening(ledger, candidate.record.number, ready.data, uuid.uuid4().hex)
    crash_point("test-opened")
    _say("opening the test samples")
    try:
        test: Examples = of_task("test", lambda: task.test(config.data_seed))
        if num_samples_of(test) == 0:
            raise ValueError("the test part of the task is empty; give it samples")
        opening = note_samples(ledger, opening, fingerprint_of(test, config))
        measured = [outcomes_of(task, model, test, config) for model in models]
        loaded, exported = released_model(new.model, candidate, models[0].to("cpu"), packed, ready.splits.val, test)
    except ValueError as error:
        raise ValueError(f"{error} (the test samples count as opened: that stands in the ledger)") from error
    watched, without = baseline(candidate, preparing, ready.splits, test, loaded, measured[0], new.model)
    title = f"{folder.name}, trial {candidate.record.number}: test samples"
    told = {
        **definition_told(folder, ledger, candidate, opening),
        **weights_told(ready.weights, measured),
        **metrics_told(candidate, opening, measured[0], val),
        "errors": errors(measured[0], preparing, title, new.path),
        "preparing": preparing,
        "baseline": watched,
        "export": exported,
        "remarks": [*candidate.remarks, *(f"changed since the sweep: {line}" for line in ready.changed), *without],
        "drift": [*candidate.drift, *ready.changed],
    }
    new.write(told, measured[0])
    crash_point("accepted")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(accepted: Accepted, registered: Registered | None, *, as_json: bool) -> None:
    told = accepted.told
    if as_json:
        print(
            json.dumps(
                {**told, "folder": str(accepted.path), "registered": registered and asdict(registered)}, indent=1
            )
        )
        return
    print("\n".join(report_of(told, registered)))
    print(f"model    {accepted.model}")
    print(f"details  {accepted.path / 'acceptance.json'}")
    for picture in accepted.pictures():
        print(f"errors   {picture}")
    if registered is not None:
        print(f"load     {load_words(told, registered)}")
        print(f"watch    {watch_words(registered)}")


if __name__ == "__main__":
    leave(main())
