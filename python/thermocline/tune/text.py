"""Reports as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LOSS = 0.0005
"""A smaller loss is shown as none."""


def report(found: Mapping[str, Any], retuned: Mapping[str, Any] | None = None) -> str:
    """Returns the report of a study."""
    counts = found["evaluations"]
    lines = [
        f"study {found['study']}: {found['source']}",
        f"designer {found['designer']}, seed {found['seed']}; {counts['trials']} trials ({counts['infeasible']} beyond the limit, "
        f"{counts['failed']} failed), {counts['probes']} probes, {counts['took_seconds']:.0f} s",
    ]
    if found["fleet"]:
        goal = found["objective"]
        lines += [
            f"objective: {goal['percentile']:.0%} of the entries at or below {goal['rate_max']:.3%}/min of the working set; "
            f"the limit is {goal['limit']:.4%}, {goal['margin']:.0%} below"
        ]
    lines += [f"warning: {warning}" for warning in found["warnings"]]
    lines += [
        "",
        *_results(found),
        *_parameters(found),
        *_sensitivity(found["sensitivity"]),
        *_classes(found["classes"]),
    ]
    if retuned:
        lines += [
            "",
            "reasons for tuning again",
            *(f"  {'*' if one['due'] else ' '} {one['text']}" for one in retuned["reasons"]),
        ]
        lines += [
            "changes",
            *(f"  {one['key']} {one['before']} -> {one['after']}: {one['why']}" for one in retuned["changes"]),
        ]
        if not retuned["changes"]:
            lines += ["  none: the parameters in effect are still the best found"]
    return "\n".join(lines) + "\n"


def _results(found: Mapping[str, Any]) -> list[str]:
    rows: list[tuple[str, Mapping[str, Any] | None]] = [
        ("tuning, before", found["before"]),
        ("tuning, after", found["after"]),
    ]
    if found["holdout"]:
        rows += [
            ("held out, before", found["holdout"]["before"]),
            ("held out, after", found["holdout"]["after"]),
        ]
    if any(row and "coverage" not in row for _, row in rows):
        return [
            f"{name:<22} {row['value']:>12.6g}  {'holds' if row['holds'] else 'does not hold'}, margin left {row['margin_left']:.1%}"
            if row
            else f"{name:<22} nothing holds the limit"
            for name, row in rows
        ]
    lines = [f"{'trace':<22} {'K':>7} {'S':>7} {'coverage':>9} {'saved':>7} {'rate':>12} {'margin left':>12}"]
    for name, row in rows:
        if row is None:
            lines.append(f"{name:<22} nothing holds the limit")
            continue
        rate = "-" if row["rate"] is None else f"{row['rate']:.4%}/min"
        margin = "-" if row["margin_left"] is None else f"{row['margin_left']:.1%}"
        broken = "" if row["holds"] else "  beyond the objective"
        lines.append(
            f"{name:<22} {row['percentile']:>7.2%} {row['warmup_seconds']:>6.0f}s {row['coverage']:>9.2%} {row['saved']:>7.2%} "
            f"{rate:>12} {margin:>12}{broken}"
        )
    if found["gain"] is not None:
        holdout = f", {found['holdout']['gain']:+.1%} on the held-out trace" if found["holdout"] else ""
        lines.append(f"stored: {found['gain']:+.1%} on the tuning trace{holdout}")
    return lines


def _parameters(found: Mapping[str, Any]) -> list[str]:
    if not found["parameters"]:
        return ["", "no parameters: no evaluated point holds the limit; search other knobs, or set a weaker objective"]
    lines = ["", f"{'parameter':<40} {'before':>10} {'after':>10}"]
    return lines + [f"{key:<40} {found['parameters_before'].get(key, ''):>10} {text:>10}" for key, text in found["parameters"].items()]


def _sensitivity(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [row for row in rows if len(row["steps"]) > 1]
    if not shown:
        return []
    lines = ["", "effect of changing one knob (for searched knobs, with the best K and S at each step):"]
    for row in shown:
        loss = row["loss_max"] or 0.0
        worst = f"up to {loss:.1%} less stored" if loss > _LOSS else "no less stored"
        breaks = "; can break the limit" if row["can_break"] else ""
        lines.append(f"  {row['key']:<38} {row['here_text']:>8}: within 1% from {row['fine_from']} to {row['fine_to']}; {worst}{breaks}")
    return lines


def _classes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        f"{'class':<16} {'P':>8} {'K':>7} {'S':>7} {'coverage':>9} {'rate':>12} {'limit':>10}   with the fleet's pair",
    ]
    for row in rows:
        p = "" if row["promotion_rate"] is None else f"{row['promotion_rate']:.3%}"
        rate = "-" if row["rate"] is None else f"{row['rate']:.4%}"
        fleets = "" if row["coverage_at_fleets"] is None else f"{row['coverage_at_fleets']:.2%} at {row['rate_at_fleets'] or 0:.4%}"
        unknown = "" if row["known"] else "   not a class of the configuration: reported, not set"
        holdout = ""
        if row["coverage_at_holdout"] is not None:
            broken = "" if row["holds_at_holdout"] else " (BROKEN)"
            holdout = f"; held out: {row['coverage_at_holdout']:.2%} at {row['rate_at_holdout'] or 0:.4%}{broken}"
        lines.append(
            f"{row['class']:<16} {p:>8} {row['percentile']:>7.2%} {row['warmup_seconds']:>6.0f}s {row['coverage']:>9.2%} {rate:>12} "
            f"{row['limit']:>10.4%}   {fleets}{holdout}{unknown}"
        )
    return lines


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a comparison of studies."""
    lines = [f"{'study':<28} {'designer':<10} {'trials':>6} {'to 99%':>7} {'coverage':>9} {'rate':>12} {'held out':>13} {'gain':>7}"]
    for row in rows:
        coverage = "-" if row["value"] is None else f"{row['value']:.2%}" if row["coverage"] else f"{row['value']:.6g}"
        rate = "-" if row["rate"] is None else f"{row['rate']:.4%}/min"
        holdout = "-" if row["holdout_coverage"] is None else f"{row['holdout_coverage']:.2%}"
        gain = "-" if row["gain"] is None else f"{row['gain']:+.1%}"
        needed = "-" if row["trials_to_99"] is None else str(row["trials_to_99"])
        lines.append(
            f"{row['study']:<28} {row['designer']:<10} {row['trials']:>6} {needed:>7} {coverage:>9} {rate:>12} {holdout:>13} {gain:>7}"
        )
    remarks = {remark for row in rows for remark in row["remarks"]}
    return "\n".join([*lines, *sorted(remarks)]) + "\n"
