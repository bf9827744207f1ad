"""The arena's arithmetic: curves, equal loss, ranking."""

import pytest

from arena import curves, page, result
from arena.contenders import CONTENDERS
from arena.curves import Point
from arena.losses import DISK_US, ZSWAP_US, Faults, Move, lost_us, moves
from arena.measure import Measured, Run
from thermolab.qemu import MIB


def run(contender: str, intensity: str, **programs: tuple[float, float]) -> Run:
    measured = {
        name: Measured(mib * MIB, lost, 1000, lost, lost, p99_us=100.0) for name, (mib, lost) in programs.items()
    }
    return Run(contender, intensity, measured, 0.0, MIB, 0.01, [])


def test_savings_at_equal_loss_lie_on_the_line_from_the_origin() -> None:
    points = [Point(0.02, 40.0), Point(0.01, 10.0)]
    saved = [curves.saved_at(points, lost) for lost in (0.0, 0.005, 0.01, 0.015, 0.02, 0.5)]
    assert saved == pytest.approx([0, 5, 10, 25, 40, 40])


def test_more_loss_never_saves_less() -> None:
    points = [Point(0.01, 30.0), Point(0.03, 5.0)]
    assert curves.saved_at(points, 0.02) == 30
    assert curves.saved_at(points, 0.04) == 30
    assert curves.saved_at([Point(0.0, 7.0)], 0.0) == 7
    assert curves.saved_at([Point(0.01, -4.0)], 0.01) == 0


def test_loss_counts_beyond_that_without_a_contender() -> None:
    base = run("nothing", "-", redis=(100, 0.02))
    found = curves.curves(base, [run("a", "1", redis=(60, 0.05)), run("a", "2", redis=(90, 0.01))])
    assert [point.saved_bytes / MIB for point in found["redis"]["a"]] == [10, 40]
    assert [point.lost_ratio for point in found["redis"]["a"]] == pytest.approx([0.0, 0.03])


def test_each_program_has_its_own_best_peer() -> None:
    base = run("nothing", "-", redis=(100, 0.0), jvm=(100, 0.0))
    ours, script, senpai = "Thermocline auto", "MGLRU script", "oomd senpai"
    runs = [
        run(ours, "standard", redis=(80, 0.01), jvm=(90, 0.01)),
        run(script, "30 s", redis=(90, 0.01), jvm=(80, 0.01)),
        run(senpai, "1 %", redis=(60, 0.01), jvm=(99, 0.01)),
    ]
    found = result.compare({"five": [(base, runs)]}, CONTENDERS, "6.12")
    assert found["ratio_to_best_peer_at_1pct"] == {"redis": pytest.approx(0.5), "jvm": pytest.approx(0.5)}
    assert found["geomean_ratio_to_best_peer_at_1pct"] == pytest.approx(0.5)
    assert found["workloads_behind_by_5pct"] == ["jvm", "redis"]
    assert found["ranking"]["0.01"][script]["geomean_ratio_to_best_peer"] == pytest.approx((0.25 * 20) ** 0.5)
    assert found["contenders"]["Thermocline auto standard"]["net_saved_bytes"] == 29 * MIB
    assert "behind on jvm, redis" in page.html(found)
    assert "0.50  Thermocline auto" in page.text(found)
    assert page.text({"workloads": {}}) == ""


def test_savings_below_a_mebibyte_are_equal() -> None:
    base = run("nothing", "-", build=(100, 0.0))
    runs = [run("Thermocline auto", "standard", build=(99.9, 0.001)), run("MGLRU script", "6 s", build=(100.5, 0.05))]
    found = result.compare({"five": [(base, runs)]}, CONTENDERS, "6.12")
    assert found["geomean_ratio_to_best_peer_at_1pct"] == 1


def test_intervals_need_repeats() -> None:
    base = run("nothing", "-", redis=(100, 0.0))
    pair = [
        (
            base,
            [
                run("Thermocline auto", "standard", redis=(100 - saved, 0.01)),
                run("MGLRU script", "6 s", redis=(80, 0.01)),
            ],
        )
        for saved in (10, 30)
    ]
    found = result.compare({"five": pair}, CONTENDERS, "6.12")
    row = found["ranking"]["0.01"]["Thermocline auto"]
    assert (row["geomean_ratio_to_best_peer"], row["interval"]) == (pytest.approx(1.0), pytest.approx([0.5, 1.5]))
    assert result.compare({"five": pair[:1]}, CONTENDERS, "6.12")["ranking"]["0.01"]["MGLRU script"]["interval"] is None


def test_pages_that_one_read_brings_are_one_wait() -> None:
    before = Faults(zswap=5, disk=100, reads=2000)
    # 64 pages by two reads, beside three of what the job had never had; then 64 pages without read-ahead.
    assert lost_us(before, Faults(zswap=6, disk=164, reads=2005)) == {"zswap": ZSWAP_US, "disk": 5 * DISK_US}
    assert lost_us(before, Faults(zswap=5, disk=164, reads=2500)) == {"zswap": 0, "disk": 64 * DISK_US}


def test_pages_that_the_agent_moves_are_no_wait() -> None:
    def record(unix_ms: int, job: str, written: int) -> dict[str, object]:
        return {"record": "writeback", "unix_ms": unix_ms, "job": job, "written": written}

    records = [record(1000, "/a", 0), record(1000, "/b", 0), record(3000, "/b", 4096), record(3000, "/a", 40 * 4096)]
    found = moves([*records, {"record": "period", "job": "/a"}], ["a", "b"], counted=41)
    assert found == {"a": [Move(1000, 3000, 40)], "b": [Move(1000, 3000, 1)]}
    spans = ((0, 2000), (2000, 6000), (3000, 6000), (0, 9000))
    assert [found["a"][0].within(*span) for span in spans] == [20, 20, 0, 40]
    # The kernel counted fewer.
    assert moves(records, ["a", "b"], counted=20)["a"][0].pages == pytest.approx(40 * 20 / 41)
    before, after = Faults(zswap=100, disk=0, reads=0), Faults(zswap=150, disk=0, reads=0)
    assert lost_us(before, after, 40) == {"zswap": 10 * ZSWAP_US, "disk": 0}
    assert lost_us(before, after, 60.5) == {"zswap": 0, "disk": 0}
