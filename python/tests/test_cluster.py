"""Tests without an engine and with a substitute for `thermocline`; `test_ray.py` uses the real ones."""

import json
import stat
from pathlib import Path

import pytest

from thermocline.cluster import Killed, Model, Part, Refused, Share, Simulation, add_up, sweep


def test_every_part_is_added_once() -> None:
    for count in range(1, 30):
        for fan_in in (2, 3, 8):
            sizes: list[int] = []

            def add(group: list[frozenset[int]], sizes: list[int] = sizes) -> frozenset[int]:
                sizes.append(len(group))
                assert sum(map(len, group)) == len(frozenset.union(*group))
                return frozenset.union(*group)

            whole = add_up([frozenset({part}) for part in range(count)], add, fan_in)
            assert whole == frozenset(range(count))
            assert all(1 < size <= fan_in for size in sizes)
    with pytest.raises(ValueError, match="never ends"):
        add_up([1, 2], sum, fan_in=1)
    with pytest.raises(ValueError, match="nothing to add up"):
        add_up(list[int](), sum)


def stand_in(path: Path, script: str) -> str:
    """Creates a program that runs a shell script."""
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_share_is_passed_by_name_and_its_tally_is_returned(tmp_path: Path) -> None:
    # The script writes its arguments and its standard input to the tally.
    script = 'for last; do :; done\n{ echo "$*"; cat; } > "$(echo "$*" | sed "s/.*--tally \\([^ ]*\\).*/\\1/")"\n'
    model = Model(stand_in(tmp_path / "p", script), ("--by", "class"))
    tally = model.count(Share(("a.parquet", "b c.parquet"), "0..4"), threads=3).decode()
    assert tally.startswith("model --trace-list - --groups 0..4 --threads 3 --tally ")
    assert tally.endswith("--by class\na.parquet\nb c.parquet")
    assert "--groups" not in model.count(Share(("a",))).decode()


def test_the_program_makes_the_plan(tmp_path: Path) -> None:
    shares = [{"trace": ["a", "b"]}, {"trace": ["c"], "groups": "0..2"}]
    model = Model(stand_in(tmp_path / "p", f"echo '{json.dumps(shares)}'"))
    assert model.plan(["x"], 2) == [Share(("a", "b")), Share(("c",), "0..2")]


def test_a_failed_program_is_distinguished_from_a_killed_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no such thing"):
        Model(stand_in(tmp_path / "p", "echo no such thing >&2; exit 1")).plan(["x"], 1)
    with pytest.raises(Killed, match="signal 9"):
        Model(stand_in(tmp_path / "q", "kill -9 $$")).plan(["x"], 1)


def test_every_configuration_is_in_one_part() -> None:
    for sizes, memory, latency in (((2, 4, 8, 16, 32), ("a", "b", "c"), ("64ns", "140ns")), ((2,), ("a",), ("64ns",))):
        simulation = Simulation("t", sizes, memory, latency)
        expected = [(size, policy, added) for added in latency for policy in memory for size in sizes]
        for tasks in range(1, 40):
            parts = simulation.plan(tasks)
            # In the order of a single run of all configurations.
            assert [(size, part.memory[0], part.latency[0]) for part in parts for size in part.pool_sizes] == expected
        assert len(simulation.plan(len(expected))) == len(expected)


def test_results_are_combined_and_must_be_of_one_trace(tmp_path: Path) -> None:
    # The script returns its number of sockets, and ten events that every part has in common.
    script = """for word; do case $last in --pool-sizes) sizes=$word;; esac; last=$word; done
echo '{"events": '$((10 + sizes))', "events_without_pools": 10, "vms": 7, "results": [{"pool_sockets": '$sizes'}]}'
"""
    simulation = Simulation("t", (2, 16), ("pond",), ("64ns",), stand_in(tmp_path / "p", script), ("--seed", "3"))
    result = sweep(simulation, 2)
    assert result == {"events": 28, "events_without_pools": 10, "vms": 7, "results": [{"pool_sockets": 2}, {"pool_sockets": 16}]}
    assert simulation.arguments(Part((2, 4), ("a", "b"), ("64ns",)))[2:] == [
        *("--trace", "t", "--pool-sizes", "2,4", "--memory", "a,b", "--latency", "64ns", "--seed", "3", "--format", "json")
    ]
    with pytest.raises(Refused, match="differ in vms"):
        simulation.whole([result, result | {"vms": 8}])
