"""What a report says in words and tables: the answer, what both curves say, what became of the trials.

Knows the facts of a sweep and how a section is made up; the page and the console show what it gives.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from sweeps.answers.diagnosis import ADVICE, Diagnosis
from sweeps.answers.doubts import slow_validation, spread_between_seeds
from sweeps.answers.seeds import without_seed
from sweeps.record.trial import TrialRecord
from sweeps.reporting.drawing import Figure, short
from sweeps.reporting.facts import Facts, Track
from sweeps.reporting.importance import Importances
from sweeps.reporting.next_step import NextStep
from sweeps.reporting.page import Section, Table
from sweeps.running.progress import spoken
from sweeps.sweep import describe

MOST_ROWS = 200  # of a table on the page; result.json has all
MOST_NAMED = 12  # trials that a line names
SHOWN = ("train_loss", "val_loss", "val_accuracy")
DIAGNOSES = {
    "diverged": "diverged",
    "unstable": "rose again",
    "overfit": "overfit",
    "too_short": "still falling",
    "underfit": "underfit",
    "fits": "levelled off",
}


def subtitle(facts: Facts) -> list[str]:
    """What it is, how far, how long."""
    done = sum(trial.state not in ("running", "waiting") for trial in facts.trials)
    took = f", {spoken(facts.seconds)}" if facts.seconds is not None else ""
    ended = f", ended by --{facts.ended_by.replace('_', '-')}" if facts.ended_by else ""
    lines = [f"{facts.state}: {facts.sweep.question} of {facts.sweep.task}, {done} of {len(facts.trials)} trials done"]
    lines[0] += took + ended
    fixed = {f"task.{name}": value for name, value in facts.sweep.task_settings.items()}
    if fixed:
        lines.append(f"Settings of the task: {describe(fixed)}")
    return lines + [f"Changed on a resume: {change}" for change in facts.drift]


def sections(facts: Facts, figures: Sequence[Figure], importances: Importances, step: NextStep | None) -> list[Section]:
    """The page, from the answer to the details."""
    by_name = {figure.name: figure for figure in figures}

    def drawn(*names: str) -> list[Figure]:
        return [by_name[name] for name in names if name in by_name]

    found = [Section("Answer", [facts.verdict], kind="verdict")]
    if step is not None:
        found.append(Section("What to try next", [step.why], step.command))
    if facts.trials:
        found.append(Section("Ranking", table=ranking(facts)))
    if not facts.tracks:
        found.append(Section("Curves", ["No trial has reported yet: there is nothing to draw."]))
    else:
        found.append(Section("Curves", diagnosis_lines(facts), figures=drawn("loss_curves")))
    if drawn("parameters", "pareto"):
        found.append(Section("Hyperparameters", figures=drawn("parameters", "pareto")))
    if len(facts.searched()) > 1:
        found.append(Section("Importance", [importances.words], figures=drawn("importances", "parallel")))
    if endings := endings_table(facts):
        found.append(Section("What became of the others", table=endings))
    if drawn("history", "timeline"):
        found.append(Section("Course of the sweep", figures=drawn("history", "timeline")))
    return found


def ranking(facts: Facts) -> Table:
    measure, names = facts.measure, facts.searched()
    if not names:  # there is one configuration
        names = [name for trial in facts.begun[:1] for name in without_seed(trial.params)]
    shown = [name for name in SHOWN if name != measure and any(name in trial.metrics for trial in facts.trials)]
    others = [name for name, _ in facts.sweep.objectives if name not in (measure, *shown)]
    if facts.over_seeds:
        return _over_seeds(facts, names, [*others, *shown])
    rank = {trial.number: place for place, trial in enumerate(facts.judgement.ranked, start=1)}
    rows = []
    for trial in facts.in_order()[:MOST_ROWS]:
        track = facts.tracks.get(trial.number)
        said = DIAGNOSES[track.diagnosis.kind] if track and track.diagnosis else ""
        metrics = [
            short(float(trial.metrics[name])) if name in trial.metrics else "" for name in [measure, *others, *shown]
        ]
        params = [short(trial.params[name]) if name in trial.params else "" for name in names]
        rows.append([
            str(rank.get(trial.number, "")), str(trial.number), *params, trial.state, *metrics, f"{trial.epochs:g}",
            said,
        ])  # fmt: skip
    by = "the knee of the Pareto set first, then its rest" if facts.sweep.metrics else f"the best by {measure} first"
    caption = f"{len(facts.begun)} trial{'s' * (len(facts.begun) != 1)}, {by}"
    if len(facts.begun) > MOST_ROWS:
        caption += f"; the first {MOST_ROWS} of them, all are in result.json"
    headings = ["#rank", "#trial", *(_number_heading(facts, name) for name in names), "state"]
    headings += [*(f"#{name}" for name in [measure, *others, *shown]), "#epochs", "curves"]
    if not any(row[-1] for row in rows):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    return Table(caption, headings, rows)


def _number_heading(facts: Facts, name: str) -> str:
    numbers = all(
        isinstance(trial.params[name], int | float) and not isinstance(trial.params[name], bool)
        for trial in facts.begun
        if name in trial.params
    )
    return f"#{name}" if numbers else name


def _over_seeds(facts: Facts, names: Sequence[str], shown: Sequence[str]) -> Table:
    rows = []
    for place, one in enumerate(facts.judgement.configurations[:MOST_ROWS], start=1):
        means = ["" if (mean := one.mean(name)) is None else f"{mean:.4g}" for name in shown]
        estimate = "" if one.estimate is None else str(one.estimate)
        tie = "tie" if one.beside is not None and one.beside.is_known and one.beside.tied else ""
        params = [short(one.params[name]) if name in one.params else "" for name in names]
        seeds = f"{len(one.counted)} of {len(one.trials)}"
        rows.append([str(place) if one.estimate else "", *params, seeds, estimate, *means, tie])
    headings = ["#rank", *(_number_heading(facts, name) for name in names), "#seeds", f"#{facts.measure}"]
    caption = (
        f"{len(rows)} configurations over seeds, the best by the mean of {facts.measure} (+- its standard error) first"
    )
    return Table(caption, [*headings, *(f"#{name}" for name in shown), "beside the best"], rows)


def diagnosis_of_best(facts: Facts) -> Diagnosis | None:
    track = facts.tracks.get(facts.best.number) if facts.best is not None else None
    return track.diagnosis if track is not None else None


def doubts_of_best(facts: Facts, best: TrialRecord, track: Track) -> list[str | None]:
    samples = best.notes.get("train_samples")
    one = next((one for one in facts.judgement.configurations if best in one.trials.values()), None)
    values = [one.trials[seed].metrics.get("val_loss", math.nan) for seed in one.counted] if one else []
    return [
        slow_validation(track.reports, int(samples) if samples else None),
        spread_between_seeds(values, "val_loss"),
    ]


def diagnosis_lines(facts: Facts) -> list[str]:
    """What both curves of the best say, and how many trials say the same."""
    found = []
    best = facts.best
    track = facts.tracks.get(best.number) if best is not None else None
    if best is not None and track is not None:
        if track.diagnosis is None:
            found.append(f"The best, trial {best.number}, has one report; over- and underfitting show in two and more.")
        else:
            said = track.diagnosis
            found.append(f"The best, trial {best.number}, {_sentence(said.kind)}: {said.words}. {_advice(said.advice)}")
        found += [doubt for doubt in doubts_of_best(facts, best, track) if doubt]
    counts = Counter(track.diagnosis.kind for track in facts.tracks.values() if track.diagnosis)
    if sum(counts.values()) > 1:
        parts = [f"{counts[kind]} {words}" for kind, words in DIAGNOSES.items() if counts[kind]]
        found.append(f"Of {sum(counts.values())} trials whose two curves can be compared: {', '.join(parts)}.")
    return found


def _sentence(kind: str) -> str:
    return {
        "diverged": "diverged", "unstable": "is unstable", "overfit": "overfits", "too_short": "was trained too short",
        "underfit": "underfits", "fits": "fits",
    }[kind]  # fmt: skip


def _advice(advice: str) -> str:
    return f"{advice[0].upper()}{advice[1:]}."


def endings_table(facts: Facts) -> Table | None:
    """Why trials diverged, failed or were pruned: alike reasons together, numbers aside."""
    groups: dict[tuple[str, str], list[tuple[TrialRecord, str]]] = {}
    for trial in facts.begun:
        if trial.state in ("diverged", "failed", "pruned"):
            reason = (trial.reason or "").strip().splitlines()[-1:] or ["no reason was noted"]
            groups.setdefault((trial.state, re.sub(r"\d[\d.e+-]*", "#", reason[0])), []).append((trial, reason[0]))
    if not groups:
        return None
    rows = []
    for (state, _), some in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1]))):
        numbers = [str(trial.number) for trial, _ in some]
        named = ", ".join(numbers[:MOST_NAMED]) + (
            f" and {len(numbers) - MOST_NAMED} more" * (len(numbers) > MOST_NAMED)
        )
        rows.append([state, str(len(some)), some[0][1], ADVICE["diverged"] if state == "diverged" else "", named])
    if not any(row[3] for row in rows):
        return Table("Why trials have no place in the ranking", ["state", "#trials", "reason", "which"],
                     [[*row[:3], row[4]] for row in rows])  # fmt: skip
    return Table(
        "Why trials have no place in the ranking", ["state", "#trials", "reason of the first", "advice", "which"], rows
    )
