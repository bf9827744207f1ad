"""Tests that require only numpy: generated VMs and workloads, history, features, lifetimes of the Bitbrains trace."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from thermocline.learn import bitbrains, calibrated, features, generate, history, insensitive, untouched, workloads  # noqa: E402
from thermocline.learn.vms import DAY, GIB, RUNNING, Vms  # noqa: E402

SPEC = generate.Spec(vms=3000, days=9, customers=30)


def vms(rows: list[tuple[int, int, int, float]], **more: Any) -> Vms:
    """Creates VMs from customer, arrival, departure and untouched share."""
    count = len(rows)
    columns = {
        "id": np.arange(count), "customer": np.array([row[0] for row in rows]), "arrival": np.array([row[1] for row in rows]),
        "departure": np.array([row[2] for row in rows]), "untouched_ratio": np.array([row[3] for row in rows]),
        "cores": np.full(count, 4), "memory_bytes": np.full(count, 16 * GIB), "vm_type": np.full(count, "D4"),
        "guest_os": np.full(count, "linux"), "location": np.full(count, "here"),
    }  # fmt: skip
    return Vms(**(columns | more))


def test_generated_vms_are_deterministic_and_fit_the_published_figures() -> None:
    made = generate.generate(SPEC, seed=4)
    again = generate.generate(SPEC, seed=4)
    other = generate.generate(SPEC, seed=5)
    assert all((getattr(made, field.name) == getattr(again, field.name)).all() for field in dataclasses.fields(made))
    assert (made.untouched_ratio != other.untouched_ratio).any()
    assert (np.diff(made.arrival) >= 0).all()
    median, fifth, sixth, worst = generate.fit(made)
    for one in (median, fifth, sixth):
        assert one.measured == pytest.approx(one.published, abs=0.002), one.name
    assert worst.measured > worst.published


def test_customers_change_and_appear_on_a_shift_day() -> None:
    spec = generate.Spec(vms=30_000, days=12, customers=100, shift_days=(6,))
    made, plain = generate.generate(spec, seed=4), generate.generate(dataclasses.replace(spec, shift_days=()), seed=4)
    day = made.arrival // DAY
    assert (made.arrival == plain.arrival).all()
    assert (made.customer[day >= 6] == plain.customer[day >= 6]).all(), "only VMs before the day belong to others"
    new = set(plain.customer[day < 6].tolist()) - set(made.customer[day < 6].tolist())
    assert 1 <= len(new) <= 12
    assert set(made.customer[day == 6].tolist()) & new

    def changed(of: Vms) -> int:
        """Customers whose mean differs by more than a fifth of the memory between the days before and from the day on."""
        count = 0
        for customer in np.unique(of.customer):
            before, after = (of.untouched_ratio[(of.customer == customer) & side] for side in (day < 6, day >= 6))
            count += len(before) > 30 and len(after) > 30 and abs(before.mean() - after.mean()) > 0.2
        return count

    assert changed(made) >= changed(plain) + 5


@pytest.mark.parametrize(
    "wrong", [{"vms": 10}, {"days": 1}, {"customers": 0}, {"vms": 100, "customers": 101}, {"days": 5, "shift_days": (5,)}]
)
def test_invalid_sizes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot"):
        generate.Spec(**wrong)


def test_workloads_fit_both_latencies() -> None:
    for seed in range(3):
        *shares, contrary = workloads.fit(workloads.generate(400, seed=seed))
        for one in shares:
            assert one.measured == pytest.approx(one.published, abs=0.02), one.name
        assert contrary.measured >= contrary.published


def test_history_has_the_vms_that_ended_in_the_week_before() -> None:
    week = history.WINDOW_SECONDS
    of = vms(
        [
            (1, 0, 100, 0.10),
            (1, 50, 200, 0.20),
            (2, 60, 110, 0.90),
            (1, 150, RUNNING, 0.30),
            (1, 200, 300, 0.40),
            (1, 100 + week - 1, RUNNING, 0.50),
            (1, 100 + week, RUNNING, 0.60),
        ]
    )
    counts, shares = history.percentiles(of, (0, 50, 100))
    assert counts.tolist() == [0, 0, 0, 1, 2, 3, 2]
    assert np.isnan(shares[0]).all()
    assert shares[3].tolist() == [0.10] * 3
    assert shares[4].tolist() == [0.10, 0.10, 0.20]
    assert shares[5].tolist() == [0.10, 0.20, 0.40]
    assert shares[6].tolist() == [0.20, 0.20, 0.40]


def test_history_keeps_the_latest_entries() -> None:
    many = history.ENTRIES_MAX + 10
    of = vms([(1, at, at + 1, at / many) for at in range(many)] + [(1, many + 5, RUNNING, 0.0)])
    counts, shares = history.percentiles(of, (0, 100))
    assert counts[-1] == history.ENTRIES_MAX
    assert shares[-1].tolist() == [10 / many, (many - 1) / many]


@pytest.mark.parametrize("percent", [0, 1, 37, 50, 99, 100])
def test_a_percentile_is_one_of_the_values(percent: int) -> None:
    for count in range(1, 12):
        ordered = [value / 7 for value in range(count)]
        chosen = history.percentile(ordered, percent)
        assert chosen in ordered
        assert sum(value < chosen for value in ordered) <= count * percent / 100


def test_a_rare_category_has_no_prediction() -> None:
    rows = [(1, at, at + 1, 0.5) for at in range(features.CATEGORY_VMS_MIN)] + [
        (1, 1000 + at, 2000, 0.25) for at in range(features.CATEGORY_VMS_MIN - 1)
    ]
    types = np.array(["common"] * features.CATEGORY_VMS_MIN + ["rare"] * (features.CATEGORY_VMS_MIN - 1))
    known = features.known(vms(rows, vm_type=types))
    by = features.encoding(known.vms)
    assert by.means["vm_type"] == {"common": 0.5}
    inputs = features.matrix(known, by)
    assert inputs.shape == (len(rows), len(features.NAMES))
    assert inputs.dtype == np.float32
    able = features.answerable(known, inputs)
    assert able.tolist() == [at >= history.ENTRIES_MIN and kind == "common" for at, kind in enumerate(types)]


def own_label_changes_own_feature(of: Vms, at: int) -> bool:
    """Returns whether another label of one VM changes that VM's own features in training."""
    labels = of.untouched_ratio.copy()
    labels[at] = 1 - labels[at]
    before, after = (features.training_matrix(features.known(one)) for one in (of, dataclasses.replace(of, untouched_ratio=labels)))
    return not np.array_equal(before[at], after[at], equal_nan=True)


def test_no_vm_is_trained_on_its_own_label() -> None:
    count = features.CATEGORY_VMS_MIN
    chance = np.random.default_rng(3)
    rows = [(1, at, RUNNING, float(share)) for at, share in enumerate(chance.random(2 * count))]
    types = np.array(["common", "few"] * count)
    of = vms(rows, vm_type=types)
    assert not any(own_label_changes_own_feature(of, at) for at in range(len(of)))
    # The mean of all others would fall with the own label. Equal means do not order the VMs of a category.
    means = features.training_matrix(features.known(of))[:, features.NAMES.index("vm_type_mean")]
    for kind in ("common", "few"):
        assert len(set(means[types == kind].tolist())) == features.ENCODING_FOLDS
        served = features.encoding(of).means["vm_type"][kind]
        assert means[types == kind].min() <= served <= means[types == kind].max()


def test_training_and_serving_encode_the_same_categories() -> None:
    count = features.CATEGORY_VMS_MIN
    rows = [(1, at, at + 1, 0.5) for at in range(2 * count - 1)]
    known = features.known(vms(rows, vm_type=np.array(["common"] * count + ["rare"] * (count - 1))))
    served, trained = features.matrix(known, features.encoding(known.vms)), features.training_matrix(known)
    assert (np.isnan(served) == np.isnan(trained)).all()
    # With one label only, leaving some VMs out changes nothing.
    assert np.array_equal(served, trained, equal_nan=True)


def test_rounding_a_threshold_down_changes_no_comparison() -> None:
    chance = np.random.default_rng(1)
    thresholds = chance.random(2000)
    below = untouched.float_below(thresholds)
    assert (below <= thresholds).all()
    for inputs in (np.nextafter(below, np.float32(2)), below, np.nextafter(below, np.float32(-1))):
        assert ((inputs <= thresholds) == (inputs <= below)).all()


def test_the_highest_setting_within_the_target_is_chosen() -> None:
    of = vms([(1, at, DAY, at / 1000) for at in range(1000)])
    predicted = np.array([np.full(1000, 0.01), np.full(1000, 0.03), np.full(1000, 0.2)])
    night = untouched.Night(0, of, predicted)
    settings = (0.01, 0.02, 0.05)
    assert untouched.choose([], 0.04, DAY, settings) == 1
    assert untouched.choose([night], 0.04, DAY, settings) == 1
    assert untouched.choose([night], 0.3, DAY, settings) == 2
    assert untouched.choose([night], 0.001, DAY, settings) == 0
    # No VM has ended yet, so there is no data.
    assert untouched.choose([night], 0.3, DAY - 1, settings) == 2


def test_whole_slices_never_exceed_the_prediction() -> None:
    chance = np.random.default_rng(2)
    memory = chance.integers(1, 64, size=500) * GIB // 2
    predicted = chance.random(500)
    sliced = untouched.in_slices(predicted, memory)
    assert (sliced <= predicted).all()
    assert ((predicted - sliced) * memory < GIB).all()


def test_false_positives_are_counted_in_the_order_of_the_score() -> None:
    wrong = insensitive.wrong_by_count(np.array([0.9, 0.1, 0.8, 0.5]), np.array([True, False, False, True]))
    assert wrong.tolist() == [0.0, 0.0, 0.25, 0.25, 0.5]
    curve = insensitive.curve([insensitive.Fold(wrong), insensitive.Fold(np.array([0, 0.25, 0.25, 0.25, 0.5]))])
    assert [point.gain for point in curve] == [0, 0.25, 0.5, 0.75, 1.0]
    assert [point.wrong for point in curve] == [0, 0.125, 0.25, 0.25, 0.5]


def test_every_split_has_disjoint_halves() -> None:
    for train, test in insensitive.splits(159, 10, seed=3):
        assert sorted([*train, *test]) == list(range(159))
        assert abs(len(train) - len(test)) <= 1


def test_days_of_a_vm_are_lifetimes() -> None:
    vm = np.array([5, 5, 5, 5, 6, 6, 7])
    day = np.array([0, 0, 1, 1, 0, 1, 0])
    cores = np.array([2, 2, 2, 2, 1, 1, 0])
    provisioned = np.array([1024, 1024, 1024, 2048, 512, 512, 0])
    active = np.array([256, 512, 0, 0, 1024, 128, 0])
    made, counted = bitbrains.lives(vm, day, cores, provisioned, active)
    assert counted == {"vm_days": 5, "resized": 1, "without_memory": 1, "used": 3}
    rows = zip(made.customer.tolist(), made.arrival.tolist(), made.untouched_ratio.tolist(), strict=True)
    assert list(rows) == [(5, 0, 0.5), (6, 0, 0.0), (6, DAY, 0.75)]


def test_a_longer_lifetime_has_the_minimum_of_its_days() -> None:
    made, _ = bitbrains.lives(*(np.array(column) for column in zip(*((1, at, 1, 100, 10 * (at % 4)) for at in range(6)), strict=True)))
    longer = bitbrains.lasting(features.known(made), 3).vms
    assert (longer.arrival // DAY).tolist() == [0, 1, 2, 3]
    assert longer.untouched_ratio == pytest.approx([0.8, 0.7, 0.7, 0.7])
    assert (longer.departure - longer.arrival == 3 * DAY).all()


def test_calibrated_shares_promise_most_within_the_target() -> None:
    # Small VMs are left with 0.8 times the least of their week, every 20th with half of it; large ones with all of it.
    rows = [(one, day * DAY, (day + 1) * DAY, 0.5) for one in range(400) for day in range(8)]
    large = np.array([row[0] % 4 == 0 for row in rows])
    last = np.array([row[1] == 7 * DAY for row in rows])
    unlucky = np.array([row[0] % 20 == 1 for row in rows])
    left = np.where(last, np.where(large, 0.5, np.where(unlucky, 0.25, 0.4)), 0.5)
    of = features.known(vms(rows, untouched_ratio=left, memory_bytes=np.where(large, 64, np.where(last, 8, 8)) * GIB))
    today = of.where(last)
    found = calibrated.calibrate(today, 0.03)
    promised = found.predict(today)
    wrong = (promised > today.vms.untouched_ratio + 1e-9).mean()
    assert wrong <= 0.03
    assert (promised[today.vms.memory_bytes == 64 * GIB] == 0.5).all()
    assert calibrated.rule(today).max() == pytest.approx(0.45)
    # With a target that the unlucky fit into, small VMs are promised what nearly all of them have left.
    loose = calibrated.calibrate(today, 0.1).predict(today)
    assert loose[today.vms.memory_bytes == 8 * GIB].max() == pytest.approx(0.4)


def test_each_day_is_calibrated_on_the_days_before() -> None:
    rows = [(one, day * DAY, (day + 1) * DAY, 0.5 if day < 12 else 0.1) for one in range(300) for day in range(14)]
    of = features.known(vms(rows))
    promised = calibrated.nightly(of, range(10, 14), 0.03)
    at = of.vms.arrival // DAY
    assert np.isnan(promised[at < 10]).all()
    assert promised[at == 11] == pytest.approx(0.5)
    assert promised[at == 12] == pytest.approx(0.5), "the first day of a change cannot be known"
    assert (promised[at == 13] <= 0.1).all()
    none = calibrated.calibrate(of.where(at == 0), 0.03)
    assert (none.predict(of) == 0).all()
