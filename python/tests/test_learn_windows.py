"""Promises for a day and for its windows, on small made-up VMs."""

import numpy as np
import pytest

from thermocline.report import windows


def samples(days: int, vms: int) -> tuple[np.ndarray, ...]:
    """Two samples per window: VM 0 uses 60 of 100 MiB in the first window only, all others in the last one only."""
    rows = [
        (vm, day * windows.DAY_SECONDS + window * 14_400 + offset, 100.0, 60.0 if window == (0 if vm == 0 else 5) else 10.0)
        for vm in range(vms)
        for day in range(days)
        for window in range(windows.WINDOWS)
        for offset in (0, 7_200)
    ]
    vm, second, provisioned, active = zip(*rows, strict=True)
    return np.array(vm), np.array(second), np.array(provisioned), np.array(active)


def test_windows_need_less_than_days_where_peaks_are_at_different_times() -> None:
    of = windows.with_past(windows.used(*samples(30, 2)))
    found = windows.figures(of, (0.04,))
    assert found["vm_days"] == 2 * 9
    # Two VMs with 60 MiB each of 200: by window they need 70.
    assert found["possible"]["day"] == pytest.approx(0.4)
    assert found["possible"]["windows"] == pytest.approx(0.65)
    alone = {row["promise"]: row for row in found["policies"] if row["vms_per_server"] == 1}
    assert alone["day"]["pool_ratio"] == pytest.approx(0.4, abs=0.02)
    assert alone["windows"]["pool_ratio"] == pytest.approx(0.65, abs=0.02)
    assert alone["day"]["over_ratio"] == 0 and alone["windows"]["moved_per_day_ratio"] > 0.4


def test_a_vm_that_was_resized_or_away_is_left_out() -> None:
    vm, second, provisioned, active = samples(30, 1)
    resized = provisioned.copy()
    resized[second // windows.DAY_SECONDS == 25] = 200.0
    at_noon = resized.copy()
    at_noon[(second // windows.DAY_SECONDS == 25) & (second % windows.DAY_SECONDS < 43_200)] = 100.0
    for changed in (resized, at_noon):
        days = windows.with_past(windows.used(vm, second, changed, active)).day
        assert days.min() == 7 and days.max() == 24, "no day has a past week with the same memory from day 25 on"
    gone = second // windows.DAY_SECONDS != 25
    days = windows.with_past(windows.used(vm[gone], second[gone], provisioned[gone], active[gone])).day
    assert days.max() == 24


def test_servers_share_what_is_promised() -> None:
    of = windows.with_past(windows.used(*samples(30, 5)))
    servers = windows.on_servers(of, 2)
    assert len(servers.day) == 2 * len(np.unique(of.day)), "five VMs fill two servers of two"
    assert (servers.provisioned == 200).all() and (servers.past_day == 120).all()
    assert (servers.past.max(axis=1) <= 120).all() and (servers.past.max(axis=1) >= 70).all()
