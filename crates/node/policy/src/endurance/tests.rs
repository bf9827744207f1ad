use proptest::prelude::*;

use super::*;

/// A byte per second, and a minute of it at once.
const SLOW: Params = Params { bytes_per_day: Bytes(86_400), burst: Bytes(60) };

/// The one place that spends; every case below is data: (now, available then, written then).
fn check(params: &Params, events: &[(u64, u64, u64)]) {
    let mut bucket = Bucket::full(params, Millis(0));
    for &(now_ms, available, written) in events {
        assert_eq!(bucket.available(params, Millis(now_ms)), Bytes(available), "at {now_ms} ms of {events:?}");
        bucket.spend(params, Millis(now_ms), Bytes(written));
    }
}

#[test]
fn what_is_written_is_missed_until_time_pours_it_in_again() {
    check(&SLOW, &[(0, 60, 60), (0, 0, 0), (999, 0, 0), (1_000, 1, 0), (60_000, 60, 0), (90_000, 60, 10), (90_000, 50, 0)]);
    // What ran over is lost, to the part of a byte.
    check(&SLOW, &[(500, 60, 60), (1_000, 0, 0), (1_499, 0, 0), (1_500, 1, 0)]);
    check(&Params { burst: Bytes(u64::MAX), ..SLOW }, &[(0, i64::MAX.unsigned_abs(), 0)]);
    check(&Params { burst: Bytes::ZERO, ..SLOW }, &[(0, 0, 0), (u64::MAX, 0, 0)]);
}

#[test]
fn debt_is_paid_back_first() {
    check(&SLOW, &[(0, 60, 100), (0, 0, 0), (40_000, 0, 0), (41_000, 1, 0), (100_000, 60, 0)]);
    check(&SLOW, &[(0, 60, u64::MAX), (1_000, 0, u64::MAX), (86_400_000, 0, 0)]);
}

#[test]
fn remainders_are_kept_however_often_the_bucket_is_read() {
    // 3 bytes a day, read every 8.6 s: not one byte of a year is lost.
    let params = Params { bytes_per_day: Bytes(3), burst: Bytes(2_000) };
    let mut bucket = Bucket::full(&params, Millis(0));
    bucket.spend(&params, Millis(0), Bytes(2_000));
    let (step_ms, year_ms) = (8_638, 365 * MS_PER_DAY);
    for now_ms in (0..year_ms).step_by(step_ms) {
        bucket.spend(&params, Millis(now_ms), Bytes::ZERO);
    }
    assert_eq!(bucket.available(&params, Millis(year_ms)), Bytes(3 * 365));
}

#[test]
fn a_budget_of_zero_gives_nothing_ever() {
    check(&Params { bytes_per_day: Bytes::ZERO, ..SLOW }, &[(0, 0, 0), (1_000, 0, 5), (u64::MAX, 0, 0)]);
}

#[test]
fn a_clock_that_goes_back_is_tolerated() {
    check(&SLOW, &[(50_000, 60, 60), (10_000, 0, 0), (11_000, 1, 0), (50_000, 40, 0)]);
    check(&SLOW, &[(50_000, 60, 60), (10_000, 0, 0), (10_000, 0, 5), (16_000, 1, 0)]);
}

#[test]
fn a_smaller_budget_counts_at_once() {
    let mut bucket = Bucket::full(&SLOW, Millis(0));
    let less = Params { burst: Bytes(20), ..SLOW };
    assert_eq!(bucket.available(&less, Millis(0)), Bytes(20));
    bucket.spend(&less, Millis(0), Bytes::ZERO);
    assert_eq!(bucket.available(&SLOW, Millis(1_000)), Bytes(21));
}

#[test]
fn a_record_out_of_range_is_read_as_a_bucket() {
    let text = format!(r#"{{"level":{},"part":{},"at_ms":{}}}"#, i64::MAX, u64::MAX, u64::MAX);
    let bucket: Bucket = serde_json::from_str(&text).unwrap();
    assert_eq!(bucket.available(&SLOW, Millis(0)), SLOW.burst);
}

prop_compose! {
    fn any_params()(bytes_per_day in 0u64..1 << 42, burst in 0u64..1 << 36) -> Params {
        Params { bytes_per_day: Bytes(bytes_per_day), burst: Bytes(burst) }
    }
}

/// Writes as (milliseconds since the one before, share of what is available in 255ths).
fn any_writes() -> impl Strategy<Value = Vec<(u32, u8)>> {
    proptest::collection::vec((0u32..100_000_000, any::<u8>()), 1..60)
}

proptest! {
    #[test]
    fn over_any_time_spending_stays_within_burst_plus_rate_times_time(params in any_params(), writes in any_writes()) {
        let mut bucket = Bucket::full(&params, Millis(0));
        let (mut now_ms, mut spent) = (0, Vec::new());
        for (wait_ms, share) in writes {
            now_ms += u64::from(wait_ms);
            let available = bucket.available(&params, Millis(now_ms));
            let written = Bytes(u64::try_from(u128::from(available.0) * u128::from(share) / 255).unwrap());
            bucket.spend(&params, Millis(now_ms), written);
            spent.push((now_ms, written.0));
        }
        for first in 0..spent.len() {
            let mut sum = 0u128;
            for &(at_ms, written) in &spent[first..] {
                sum += u128::from(written);
                let poured = u128::from(at_ms - spent[first].0) * u128::from(params.bytes_per_day.0);
                // In parts of a byte, so that nothing is rounded away.
                let allowed = u128::from(params.burst.0) * u128::from(MS_PER_DAY) + poured;
                prop_assert!(sum * u128::from(MS_PER_DAY) <= allowed, "{sum} bytes from {} to {at_ms} ms", spent[first].0);
            }
        }
    }

    #[test]
    fn a_restart_loses_nothing(params in any_params(), writes in any_writes()) {
        let mut bucket = Bucket::full(&params, Millis(0));
        let mut now_ms = 0;
        for (wait_ms, share) in writes {
            now_ms += u64::from(wait_ms);
            bucket.spend(&params, Millis(now_ms), Bytes(u64::from(share) << 20));
            let text = serde_json::to_string(&bucket).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bucket>(&text).unwrap(), bucket);
        }
    }

    #[test]
    fn any_record_and_time_is_answered(level in any::<i64>(), times in any::<(u64, u64)>(), numbers in any::<(u64, u64, u64, u64)>()) {
        let params = Params { bytes_per_day: Bytes(numbers.0), burst: Bytes(numbers.1) };
        let mut bucket = Bucket { level, part: numbers.2, at_ms: Millis(times.0) };
        bucket.spend(&params, Millis(times.1), Bytes(numbers.3));
        prop_assert!(bucket.available(&params, Millis(times.1)) <= params.burst);
    }
}
