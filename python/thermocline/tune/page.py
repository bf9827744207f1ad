"""Reports as a self-contained HTML page, without scripts or external resources."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from .plot import Mark, Plot, bars

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem }
p.note { color: #56616f; margin: .2rem 0 .8rem } code { font-size: .92em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid #e3e8ee }
th, td { white-space: nowrap } th:first-child, td:first-child, td:last-child { text-align: left } td:last-child { white-space: normal }
th { color: #56616f; font-weight: 600 }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.2rem 0 }
.tile { border: 1px solid #e3e8ee; border-radius: 6px; padding: .6rem 1rem }
.tile b { display: block; font-size: 1.5rem; line-height: 1.2 } .tile span { color: #56616f; font-size: .85rem } .bad { color: #b3261e }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #56616f }
details { margin: 1rem 0 } summary { cursor: pointer; color: #56616f }
"""

_GOOD, _BAD, _QUIET, _BASE = "#1f77b4", "#d98b87", "#9aa7b5", "#e08a00"


def page(found: Mapping[str, Any], retuned: Mapping[str, Any] | None = None) -> str:
    """Returns the page of a study."""
    parts = [
        f"<h1>Tuning of {_e(found['source'])}</h1>",
        f'<p class="note">{_e(_summary(found))}</p>',
        _tiles(found),
        _results(found),
    ]
    if retuned:
        parts.append(_retune(retuned))
    parts += [
        _parameters(found),
        _front(found),
        _search(found),
        _sensitivity(found["sensitivity"]),
        _classes(found["classes"]),
        _table(found),
    ]
    title = f"Thermocline: tuning of {found['source']}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _e(text: object) -> str:
    return html.escape(str(text))


def _summary(found: Mapping[str, Any]) -> str:
    counts, goal = found["evaluations"], found["objective"]
    text = f"{counts['trials']} trials by {found['designer']} (seed {found['seed']}), {counts['infeasible']} of them beyond the limit"
    if found["fleet"]:
        days = found["fleet"]["span_seconds"] / 86_400
        text += f"; {found['fleet']['jobs']} jobs, {found['fleet']['entries']} entries over {days:.1f} d"
        text += (
            f". Objective: {goal['percentile']:.0%} of the entries with far memory on at or below {goal['rate_max']:.2%} of the working set"
        )
        text += f" per minute; the limit is {goal['limit']:.3%}, {goal['margin']:.0%} below"
    return text + f". {found['program']}"


def _tiles(found: Mapping[str, Any]) -> str:
    last = (found["holdout"] or {}).get("after") or found["after"]
    if last is None:
        return '<p class="bad">No evaluated point holds the limit.</p>'
    week = "held-out trace" if found["holdout"] else "tuning trace"
    if "coverage" not in last:
        return _tile(f"{last['value']:.5g}", "value") + _tile(f"{last['margin_left']:.1%}", "margin left")
    gain = (found["holdout"] or found)["gain"]
    margin = last["margin_left"]
    tiles = [
        _tile(f"{last['coverage']:.1%}", f"coverage, {week}"),
        _tile("-" if gain is None else f"{gain:+.1%}", f"change of stored memory, {week}"),
        _tile(f"{last['saved']:.2%}", "saved of all memory"),
        _tile(
            "-" if margin is None else f"{margin:.1%}",
            f"margin left under the objective, {week}",
            bad=not last["holds"],
        ),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _tile(value: str, label: str, *, bad: bool = False) -> str:
    return f'<div class="tile"><b{" class=bad" if bad else ""}>{_e(value)}</b><span>{_e(label)}</span></div>'


def _rows(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_e(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _results(found: Mapping[str, Any]) -> str:
    weeks = [("tuning, before", found["before"]), ("tuning, after", found["after"])]
    if found["holdout"]:
        weeks += [
            ("held out, before", found["holdout"]["before"]),
            ("held out, after", found["holdout"]["after"]),
        ]
    known = [(name, row) for name, row in weeks if row and "coverage" in row]
    if not known:
        return ""
    rows = [
        (
            name, f"{row['percentile']:.2%}", f"{row['warmup_seconds']:.0f} s", f"{row['coverage']:.2%}", f"{row['saved']:.2%}",
            _rate(row["rate"]), "-" if row["margin_left"] is None else f"{row['margin_left']:.1%}", "yes" if row["holds"] else "no",
        )
        for name, row in known
    ]  # fmt: skip
    own = (found["holdout"] or {}).get("own_coverage")
    note = (
        ""
        if own is None
        else f'<p class="note">The best K and S of that trace, with the same other values, would have stored {own:.2%}.</p>'
    )
    return "<h2>Results</h2>" + _rows(("trace", "K", "S", "coverage", "saved", "rate", "margin left", "holds"), rows) + note


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.4%}/min"


def _retune(retuned: Mapping[str, Any]) -> str:
    reasons = _rows(("reason", "due"), [(one["text"], "yes" if one["due"] else "no") for one in retuned["reasons"]])
    rows = [(one["key"], one["before"], one["after"], one["why"]) for one in retuned["changes"]]
    changes = (
        _rows(("change", "before", "after", "effect"), rows)
        if rows
        else "<p>Nothing changed: the parameters in effect are still the best found.</p>"
    )
    return f"<h2>Tuned again</h2>{reasons}{changes}"


def _parameters(found: Mapping[str, Any]) -> str:
    rows = [(key, found["parameters_before"].get(key, ""), text) for key, text in found["parameters"].items()]
    return "<h2>Parameters</h2>" + _rows(("key", "before", "after"), rows) if rows else ""


def _front(found: Mapping[str, Any]) -> str:
    if not found["front"]:
        return ""
    most = found["objective"]["rate_max"]
    near = [one for one in found["front"] if one["rate"] <= 3 * most]
    plot = Plot("promotions, % of the working set a minute", "coverage, %")
    plot.line([(one["rate"] * 100, one["coverage"] * 100) for one in near], _QUIET)
    for one in near:
        tooltip = f"K {one['percentile']:.2%}, S {one['warmup_seconds']:.0f} s, evaluation {one['evaluation']}"
        tooltip += f": {one['coverage']:.2%} at {one['rate']:.4%}/min"
        plot.mark(Mark(one["rate"] * 100, one["coverage"] * 100, _GOOD if one["holds"] else _BAD, tooltip))
    plot.vertical(most * 100, "objective", "#b3261e")
    plot.vertical(found["objective"]["limit"] * 100, "limit", "#b3261e", dashed=True)
    for name, colour, below, row in (("before", _BASE, 14, found["before"]), ("after", "#14532d", -10, found["after"])):
        if row and row.get("rate") is not None:
            plot.mark(Mark(row["rate"] * 100, row["coverage"] * 100, colour, f"{name}: {row['coverage']:.2%}", name, 6, below))
    note = "The Pareto front over the pairs of K and S of all evaluations: no other pair stores more at the same or a lower rate."
    return f'<h2>Pareto front</h2><p class="note">{note}</p>{plot.svg()}'


def _search(found: Mapping[str, Any]) -> str:
    answered = [row for row in found["trials"] if row["value"] is not None]
    if len(answered) < 2:
        return ""
    scale = 100 if found["front"] else 1
    plot = Plot("trial", "coverage, %" if found["front"] else "value")
    plot.line([(row["number"], row["best_so_far"] * scale) for row in answered if row["best_so_far"] is not None], _GOOD)
    for row in answered:
        tooltip = f"trial {row['number']}: {row['value'] * scale:.4g}; " + ", ".join(f"{key} {text}" for key, text in row["texts"].items())
        plot.mark(Mark(row["number"], row["value"] * scale, _GOOD if row["feasible"] else _BAD, tooltip))
    note = "Each evaluation, and the best so far. Pale red: beyond the limit, shown with the pair of the lowest rate."
    return f'<h2>Search</h2><p class="note">{note}</p>{plot.svg()}'


def _sensitivity(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [row for row in rows if len(row["steps"]) > 1]
    if not shown:
        return ""
    charts = []
    for row in shown:
        colours = {True: _GOOD, False: _BAD}
        steps = [(step["text"], step["coverage"], colours[step["holds"]], step["value"] == row["here"]) for step in row["steps"]]
        head = f"<code>{_e(row['key'])}</code> {_e(row['here_text'])}; within 1 % from {_e(row['fine_from'])} to {_e(row['fine_to'])}"
        charts.append(f"<p>{head}</p>{bars(steps, percent=not row['measured'])}")
    note = (
        "The effect of changing one knob, with the others at their final values. For searched knobs the model ran at each step with the "
        "best K and S there. K and S are from the evaluation of the final point. Dark: the final value. Pale red: beyond the limit."
    )
    return f'<h2>Sensitivity</h2><p class="note">{note}</p>{"".join(charts)}'


def _classes(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        (
            row["class"], "" if row["promotion_rate"] is None else f"{row['promotion_rate']:.3%}", f"{row['percentile']:.2%}",
            f"{row['warmup_seconds']:.0f} s", f"{row['coverage']:.2%}", _rate(row["rate"]), f"{row['limit']:.4%}",
            "-" if row["coverage_at_fleets"] is None else f"{row['coverage_at_fleets']:.2%}", _class_holdout(row),
            "set" if row["known"] else "reported only",
        )
        for row in rows
    ]  # fmt: skip
    heads = ("class", "P", "K", "S", "coverage", "rate", "limit", "with the fleet's pair", "held out", "")
    return "<h2>By class</h2>" + _rows(heads, cells)


def _class_holdout(row: Mapping[str, Any]) -> str:
    """Returns the result of a class's parameters on the held-out trace."""
    if row["coverage_at_holdout"] is None:
        return "-"
    held = "" if row["holds_at_holdout"] else ", broken"
    return f"{row['coverage_at_holdout']:.2%} at {_rate(row['rate_at_holdout'])}{held}"


def _table(found: Mapping[str, Any]) -> str:
    rows = []
    for row in found["trials"]:
        values = ", ".join(f"{key} {text}" for key, text in row["texts"].items())
        outcome = row["failure"] or ("feasible" if row["feasible"] else f"{row['excess']:.1%} above the limit")
        value = "-" if row["value"] is None else f"{row['value']:.4f}"
        pair = "" if row["percentile"] is None else f"{row['percentile']:.2%}, {row['warmup_seconds']:.0f} s"
        rows.append((row["number"], row["kind"], values, pair, value, _rate(row["rate"]), outcome))
    heads = ("evaluation", "kind", "values", "K, S", "coverage" if found["front"] else "value", "rate", "")
    return f"<details><summary>All {len(rows)} trials</summary>{_rows(heads, rows)}</details>"
