"""The model on a local Ray cluster of several processes. Run by `make test-ray`, which sets THERMOCLINE to the program's path."""

import json
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# A loaded machine needs more time to start a cluster.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
pytest.importorskip("ray", reason="installed by make test-ray")

from thermocline.cluster import Model, Refused, Share, Simulation, on_ray, sweep

QUESTION = ("--percentiles", "90%,99%,99.9%", "--warmups", "0s,1h", "--by", "cluster", "--survey")


@pytest.fixture(scope="module")
def program() -> str:
    return os.environ["THERMOCLINE"]


@pytest.fixture(scope="module")
def traces(program: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten machines for a day."""
    directory = str(tmp_path_factory.mktemp("traces"))
    subprocess.run([program, "model", "--generate", "120", "--days", "1", "--record", directory], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def at_once(program: str, traces: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The tally of one run on one machine."""
    tally = tmp_path_factory.mktemp("whole") / "whole.tally"
    subprocess.run([program, "model", "--trace", traces, *QUESTION, "--tally", tally], check=True, capture_output=True)
    return tally.read_bytes()


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with on_ray.connected(None):
        yield


def test_a_cluster_counts_what_one_machine_does(program: str, traces: str, at_once: bytes) -> None:
    model = Model(program, QUESTION)
    shares = model.plan([traces], 5)
    assert len(shares) == 5
    heard: list[tuple[int, int]] = []
    assert on_ray.replay(model, shares, progress=lambda done, of: heard.append((done, of))) == at_once
    assert heard == [(done, 5) for done in range(1, 6)]
    assert model.report(at_once)["jobs"] > 120


def test_a_killed_worker_loses_nothing(program: str, traces: str, at_once: bytes, tmp_path: Path) -> None:
    # The first share to arrive writes the id of its worker and waits; its worker is then killed.
    worker_id, held, first = tmp_path / "worker", tmp_path / "held", tmp_path / "first"
    os.mkfifo(worker_id)
    os.mkfifo(held)
    wrapper = tmp_path / "thermocline"
    wrapper.write_text(
        f'#!/bin/sh\nif mkdir {first} 2>/dev/null; then echo "$PPID" > {worker_id}; read -r released < {held}; exit 1; fi\n'
        f'exec {program} "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    killed: list[int] = []

    def kill() -> None:
        worker = int(worker_id.read_text())
        os.kill(worker, signal.SIGKILL)
        killed.append(worker)
        # The orphaned command exits; its result is discarded.
        held.write_text("released\n")

    killer = threading.Thread(target=kill)
    shares = Model(program, QUESTION).plan([traces], 4)
    killer.start()
    assert on_ray.replay(Model(str(wrapper), QUESTION), shares) == at_once
    killer.join()
    assert len(killed) == 1
    assert killed[0] != os.getpid()


def test_a_failure_of_the_program_is_raised_at_once(program: str, traces: str) -> None:
    shares = [Share((traces,)), Share(("/nonexistent",))]
    with pytest.raises(Refused, match="/nonexistent"):
        on_ray.replay(Model(program, QUESTION), shares)
    # The same machines in two shares.
    with pytest.raises(Refused, match="counted already"):
        on_ray.replay(Model(program, QUESTION), [Share((traces,)), Share((traces,))])


def test_a_cluster_simulates_what_one_machine_does(program: str, tmp_path: Path) -> None:
    trace = str(tmp_path / "vms.parquet")
    made = [program, "pool", "generate", "--vms", "3000", "--clusters", "2", "--days", "10", "--out", trace]
    subprocess.run(made, check=True, capture_output=True)
    question = ("--confirm", "--emc-fails", "5d", "--seed", "3")
    simulation = Simulation(trace, (2, 8, 16), ("all_local", "static=30%", "pond"), ("64ns", "by_pool_size"), program, question)
    at_once = json.loads(subprocess.run([program, *simulation.arguments(simulation.all())], check=True, capture_output=True).stdout)
    assert len(at_once["results"]) == 18 and at_once["events"] > 18 * at_once["vms"]
    for tasks in (1, 6, 18):
        assert sweep(simulation, tasks, on_ray.simulate) == at_once
    with pytest.raises(Refused, match="/nonexistent"):
        sweep(Simulation("/nonexistent", (2, 4), ("pond",), ("64ns",), program), 2, on_ray.simulate)
