"""The tuner with the real program. `make test` and `make test-tune` set THERMOCLINE to its path."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from thermocline.tune import study
from thermocline.tune.choose import Objective
from thermocline.tune.cli import main
from thermocline.tune.program import Program, RunFailed, Source, run
from thermocline.tune.space import from_table

PROGRAM = os.environ.get("THERMOCLINE", "")
needs_program = pytest.mark.skipif(not PROGRAM, reason="set THERMOCLINE to the path of the program")
SMALL = Source(jobs=36, days=1)


@needs_program
def test_the_output_of_the_program_is_parsed() -> None:
    program = Program(PROGRAM)
    table = program.knobs({"cold_age.percentile": "98.5%"})
    rows = {row["key"]: row for row in table}
    assert (rows["cold_age.percentile"]["number"], rows["cold_age.warmup"]["number"]) == (0.985, 600)
    found = program.evaluate(SMALL, {"cold_age.promotion_rate": "0.15%"}, Objective(0.002), by="class")
    assert found.fleet.jobs > 36
    assert (found.configured.percentile, found.configured.warmup_seconds) == (0.99, 600)
    assert found.configured in found.pairs
    stored = sum(
        pair.stored_bytes for pairs in found.groups.values() for pair in pairs if pair.percentile == 0.99 and pair.warmup_seconds == 600
    )
    assert stored == pytest.approx(found.configured.stored_bytes)
    assert program.version().startswith("thermocline ")
    with pytest.raises(RunFailed, match="unknown key"):
        program.evaluate(SMALL, {"cold_age.nothing": "1"}, Objective(0.002))


@needs_program
def test_the_program_accepts_every_value_to_try() -> None:
    """Both bounds and the middle of every searchable knob, as the tuner writes them."""
    program = Program(PROGRAM)
    table = program.knobs({})
    tables = sorted({row["key"].rpartition(".")[0] for row in table if row["search"]})
    space = from_table(table, tables, {})
    assert len(space) > 20
    for share in (0.0, 0.5, 1.0):
        point = space.at([share] * len(space))
        numbers = {row["key"]: row["number"] for row in program.knobs(space.texts(point))}
        assert {key: numbers[key] for key in point} == pytest.approx(point)


@needs_program
def test_the_result_is_a_valid_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "s")
    words = ["run", "--study", where, "--program", PROGRAM, "--generate", "36", "--days", "1", "--designer", "random"]
    assert main([*words, "--objective", "2%", "--trials", "2", "--probes", "0", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fragment = tmp_path / "s" / "parameters.toml"
    values = {row["key"]: row["value"] for row in Program(PROGRAM, str(fragment)).knobs({})}
    again = {row["key"]: row["value"] for row in Program(PROGRAM).knobs(found["parameters"])}
    assert values == again
    assert study.read(tmp_path / "s").ages[0].seconds == 120


@needs_program
@pytest.mark.parametrize(("policy", "latency"), [("pressure", "30us"), ("slowdown", "300ns")])
def test_policies_judged_by_time_cost(policy: str, latency: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--study", str(tmp_path / "s"), "--program", PROGRAM, "--generate", "36", "--days", "1", "--designer", "random"]
    code = main([*words, "--policy", policy, "--tier-latency", latency, "--trials", "4", "--probes", "0", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["parameters"] else 3)
    values = [(row["value"], row["excess"]) for row in found["trials"]]
    assert len(values) == 5 and len(set(values)) > 1, "the searched knobs have an effect"
    assert all(0 < value < 1 for value, _ in values)
    best = max((value for value, excess in values if excess <= 0), default=None)
    assert (found["after"] or {"value": None})["value"] == best
    assert all(key.startswith(("pressure.", "slow.")) for key in found["parameters"])


@needs_program
def test_a_rollout_publishes_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where, bundle, keys = str(tmp_path / "week"), str(tmp_path / "bundle.toml"), str(tmp_path / "keys")
    words = ["run", "--study", where, "--program", PROGRAM, "--generate", "36", "--days", "1", "--designer", "grid", "--objective", "2%"]
    assert main([*words, "--trials", "1", "--probes", "0"]) == 0
    assert main(["bundle", "--study", where, "--to", bundle, "--version", "1"]) == 0
    capsys.readouterr()
    there = ["--store", str(tmp_path / "store"), "--root", str(tmp_path / "root.json"), "--keys", keys]
    run([PROGRAM, "rollout", "keygen", keys], 60)
    run([PROGRAM, "rollout", "init", *there], 60)
    run([PROGRAM, "rollout", "publish", *there, "--dry-run", bundle], 60)
    Path(bundle).write_text(Path(bundle).read_text().replace("percentile", "percentil"))
    with pytest.raises(RunFailed, match="percentil"):
        run([PROGRAM, "rollout", "publish", *there, "--dry-run", bundle], 60)
