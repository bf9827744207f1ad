"""Hot and cold data over time, from the agent's journal."""

from typing import Any

from thermolab.slow import hot_and_cold


def period(job: str, at_s: int, memory: int, slow: int, rate: int) -> dict[str, Any]:
    step = {"rate": rate * 1_000_000}
    return {"record": "slow", "job": job, "unix_ms": 5_000 + 1_000 * at_s, "memory": memory, "slow": slow, "step": step}


def test_each_period_of_the_job_is_a_point() -> None:
    records = [
        {"record": "event", "unix_ms": 1, "job": "/redis", "what": "job starts"},
        period("/redis", 0, 100, 0, 0),
        period("/other", 3, 70, 60, 9),
        period("/redis", 6, 120, 30, 12),
    ]
    assert hot_and_cold(records, "/redis") == [
        {"seconds": 0, "hot_bytes": 100, "cold_bytes": 0, "slow_rate_per_second": 0},
        {"seconds": 6, "hot_bytes": 90, "cold_bytes": 30, "slow_rate_per_second": 12},
    ]
    assert hot_and_cold(records, "/none") == []
