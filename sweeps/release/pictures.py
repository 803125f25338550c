"""Where a model errs, as a picture and in numbers: confusions of classes, errors of a quantity.

Knows nothing of tasks: what was said and what is true is handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainable.release.intervals import Numbers

MOST_CLASSES = 25  # that a table can be read with; of more, the largest confusions are shown
MOST_CONFUSIONS = 20
MOST_DOTS = 5000


def errors_of(answers: Numbers, truth: Numbers, names: Sequence[str] | None, *, classes: bool) -> dict[str, Any]:
    """Plain values (JSON). classes: `matrix` (rows: true, columns: said) where it is small, and the `largest`
    confusions; else the quantiles and the mean of the errors, said less true."""
    import numpy

    if not classes:
        errors = answers - truth
        shares = [0.05, 0.25, 0.5, 0.75, 0.95]
        found = numpy.quantile(errors, shares)
        return {
            "mean_error": float(errors.mean()),
            "quantiles": {f"{share:g}": float(value) for share, value in zip(shares, found, strict=True)},
            "largest_error": float(numpy.abs(errors).max()),
        }
    said, true = answers.astype(int), truth.astype(int)
    num = int(max(said.max(), true.max())) + 1
    labels = list(names) if names is not None and len(names) >= num else [str(number) for number in range(num)]
    # Pairs that occur, not a table of all: there may be very many classes.
    pairs, counts = numpy.unique(numpy.stack([true, said]), axis=1, return_counts=True)
    wrong = [(int(count), int(t), int(s)) for (t, s), count in zip(pairs.T, counts, strict=True) if t != s]
    largest = [
        {"true": labels[t], "said": labels[s], "count": count}
        for count, t, s in sorted(wrong, key=lambda entry: (-entry[0], entry[1:]))[:MOST_CONFUSIONS]
    ]
    found_classes: dict[str, Any] = {"num_classes": num, "largest": largest}
    if num <= MOST_CLASSES:
        matrix = numpy.zeros((num, num), dtype=int)
        matrix[pairs[0], pairs[1]] = counts
        found_classes |= {"classes": labels[:num], "matrix": matrix.tolist()}
    return found_classes


def draw_errors(errors: dict[str, Any], answers: Numbers, truth: Numbers, title: str, folder: Path) -> Path:
    """Write confusion.png or residuals.png into `folder`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if "matrix" in errors:
        _draw_matrix(axes, errors["matrix"], errors["classes"])
        path = folder / "confusion.png"
    elif "largest" in errors:
        shown = errors["largest"][::-1]
        axes.barh([f"{entry['true']} said to be {entry['said']}" for entry in shown], [e["count"] for e in shown])
        axes.set_xlabel("samples")
        path = folder / "confusion.png"
    else:
        every = max(1, len(truth) // MOST_DOTS)
        axes.scatter(truth[::every], (answers - truth)[::every], s=8, alpha=0.6, linewidths=0)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlabel("true")
        axes.set_ylabel("error: said less true")
        path = folder / "residuals.png"
    axes.set_title(title, wrap=True)
    figure.savefig(path, dpi=110)
    return path


def _draw_matrix(axes: Any, matrix: list[list[int]], labels: list[str]) -> None:
    import numpy

    counts = numpy.array(matrix)
    shares = counts / numpy.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    short = [label if len(label) <= 12 else f"{label[:11]}..." for label in labels]
    axes.set_xticks(range(len(labels)), short, rotation=45 if max(map(len, short)) > 3 else 0)
    axes.set_yticks(range(len(labels)), short)
    axes.set_xlabel("said")
    axes.set_ylabel("true")
    for row, column in zip(*counts.nonzero(), strict=True):
        shade = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=shade, fontsize=8)
