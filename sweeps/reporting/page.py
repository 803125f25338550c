"""report.html: one file that holds its figures and what draws them, and works without a network.

Everything that a user wrote (names, values, reasons) goes through `escape`. Knows no sweep but its facts.
"""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from sweeps.reporting.drawing import Figure
from sweeps.reporting.interactive import plotly_of

HERE = Path(__file__).parent
LOW = {"timeline", "importances"}  # figures of a few rows
SIGNS = {
    "circle": "&#9679;", "triangle-down": "&#9660;", "x": "&#10005;", "cross": "&#10010;", "circle-open": "&#9675;",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """cells: texts; a heading that begins with `#` has numbers below it, which stand right."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in this order: paragraphs, a command to copy, a table, figures."""

    title: str
    paragraphs: Sequence[str] = ()
    command: str | None = None
    table: Table | None = None
    figures: Sequence[Figure] = ()
    kind: str = ""  # of its first paragraph: verdict, or plain


def page_of(title: str, subtitle: Sequence[str], sections: Sequence[Section], commands: Mapping[str, str]) -> str:
    """The page as text. commands: what each does -> the line, at the foot of the page."""
    figures = {figure.name: plotly_of(figure) for section in sections for figure in section.figures}
    header = f"<h1>{escape(title)}</h1>\n" + "\n".join(f'<p class="quiet">{escape(line)}</p>' for line in subtitle)
    parts = {
        "TITLE": escape(title),
        "STYLE": _own("page.css"),
        "HEADER": header,
        "BODY": "\n".join(_section(section, index) for index, section in enumerate(sections)),
        "FOOTER": _footer(commands),
        "FIGURES": _for_script(figures),
        "LIBRARY": library() if figures else "",
        "SCRIPT": _own("page.js"),
    }
    # Split first and filled in afterwards: what is filled in may hold @TITLE@ too.
    pieces = _own("page.html").split("@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _own(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _for_script(value: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def library() -> str:
    """plotly.js, packed: a third of its size. It comes from plotly's package, which is not imported for that.

    Packing takes a tenth of a second, so whoever knows that there will be a page may ask for it ahead.
    """
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("report.html is drawn by plotly, which is not installed here: pip install plotly")
    script = Path(found.origin).parent / "package_data/plotly.min.js"
    return base64.b64encode(gzip.compress(script.read_bytes(), 6, mtime=0)).decode()


def _section(section: Section, index: int) -> str:
    name = f"section-{index}"
    found = [f'<section aria-labelledby="{name}">', f'<h2 id="{name}">{escape(section.title)}</h2>']
    for number, paragraph in enumerate(section.paragraphs):
        kind = section.kind if number == 0 else ""
        found.append(f'<p class="{kind}">{escape(paragraph)}</p>' if kind else f"<p>{escape(paragraph)}</p>")
    if section.command:
        found.append(_command(section.command))
    if section.table:
        found.append(_table(section.table, f"{name}-table"))
    found += [_figure(figure, f"{name}-{figure.name}") for figure in section.figures]
    return "\n".join([*found, "</section>"])


def _command(line: str) -> str:
    return f"<pre><code>{escape(line)}</code></pre>"


def _table(table: Table, name: str) -> str:
    """Wide ones scroll by themselves, with the keyboard too."""
    numbers = [heading.startswith("#") for heading in table.headings]

    def cells(texts: Iterable[str], tag: str, extra: str = "") -> str:
        classes = (' class="number"' if number else "" for number in numbers)
        return "".join(f"<{tag}{extra}{how}>{escape(text)}</{tag}>" for text, how in zip(texts, classes, strict=True))

    head = cells((heading.lstrip("#") for heading in table.headings), "th", ' scope="col"')
    rows = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return (
        f'<div class="scroll" role="region" aria-labelledby="{name}" tabindex="0"><table>\n'
        f'<caption id="{name}">{escape(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _figure(figure: Figure, name: str) -> str:
    one = len(figure.panels) == 1
    plots = "\n".join(
        f'<div class="plot{" low" if figure.name in LOW else ""}" id="plot-{figure.name}-{index}"></div>'
        for index in range(len(figure.panels))
    )
    legend = "" if one else _legend(figure)
    note = f"<figcaption>{escape(figure.note)}</figcaption>" if figure.note else ""
    return (
        f'<figure aria-labelledby="{name}">\n<h3 id="{name}">{escape(figure.title)}</h3>\n{legend}'
        f'<div class="panels{" one" if one else ""}" role="img" aria-label="{escape(figure.words)}">\n{plots}\n</div>\n'
        f"{note}\n</figure>"
    )


def _legend(figure: Figure) -> str:
    """Of all panels together: what stands for what."""
    found = {series.label: series for panel in figure.panels for series in panel.series if series.label}
    parts = []
    for label, one in found.items():
        look = f'style="color:{one.colour};opacity:{one.opacity}" aria-hidden="true"'
        parts.append(f"<span {look}>{SIGNS[one.symbol]}</span> {escape(label)}")
    return f'<p class="quiet legend">{" &nbsp; ".join(parts)}</p>\n' if len(parts) > 1 else ""


def _footer(commands: Mapping[str, str]) -> str:
    found = ["<h2>Commands</h2>"] if commands else []
    for words, line in commands.items():
        found.append(f"<p>{escape(words)}</p>{_command(line)}")
    found.append(
        "<noscript><p>The figures need JavaScript; the PNG files beside this page show the same.</p></noscript>"
    )
    return "\n".join(found)
