//! Generated entries for the tests of this crate.

use policy::thresholds::Thresholds;
use units::{Bytes, Millis, UnixMillis};

use crate::entry::{Basis, Entry, FIGURES, Figures, JobId, Labels};

pub(crate) fn basis(thresholds: usize) -> Basis {
    Basis { thresholds: Thresholds::log_spaced(thresholds).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) }
}

/// Start of a day.
pub(crate) const DAY: UnixMillis = UnixMillis(1_763_596_800_000);

/// Returns `entries` entries, five minutes apart, for each of `jobs` jobs of a machine, sorted.
pub(crate) fn entries(machine: &str, jobs: usize, entries: usize, buckets: usize) -> Vec<Entry> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut all = Vec::new();
    for job in 0..jobs {
        let id = JobId::new("c", machine, &format!("/job-{job:03}"), "boot", job as u64);
        for at in 0..entries as u64 {
            let mut figures = Figures::from_array(std::array::from_fn::<_, { FIGURES.len() }, _>(|_| random.u64(..1 << 20)));
            figures.start_unix_ms = DAY + Millis(at * 300_000);
            (figures.duration_ms, figures.window_ms, figures.periods) = (Millis::seconds(300), Millis::seconds(240), 5);
            (figures.held_periods, figures.far_periods) = (at % 6, 5);
            let mut histogram = |top: u64| (0..buckets).map(|bucket| random.u64(..=top >> (bucket / 2))).collect::<Vec<_>>();
            let (cold_pages, promotions_pages) = (histogram(1 << 24), histogram(1 << 12));
            figures.working_set_bytes = Bytes(cold_pages[0] * 4096);
            let decision = if at % 7 == 0 { "warming_up" } else { "offload" };
            let words = ["standard", "cold_age", "page_idle", decision].map(ToOwned::to_owned);
            let [class, policy, tracker, decision] = words;
            all.push(Entry { id: id.clone(), labels: Labels { class, policy, tracker, decision }, figures, cold_pages, promotions_pages });
        }
    }
    all.sort_by(|a, b| a.order().cmp(&b.order()));
    all
}
