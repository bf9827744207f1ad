//! When not to offload a job because its memory does not compress.
//!
//! Google's kernel marks a page whose payload exceeds 2990 bytes and retries it after a write (SDFM section 5.1); 31 % of their cold
//! memory is incompressible (SDFM section 6.3). A stock kernel has no such mark, so the same pages would be compressed in vain in
//! every period. This controller decides per job: by what the kernel did with the pages of the last offload, and by a small sample of
//! cold pages that the agent compresses. An incompressible job is not offloaded until a new sample shows that its memory has changed;
//! the passage of time is not sufficient.

use serde::{Deserialize, Serialize};

use units::{Bytes, Millis, Pages, RatioPpm};

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// A page whose compressed size exceeds this share of the original is incompressible.
    pub ratio_max: RatioPpm,
    /// A job with at least this share of incompressible pages is not offloaded.
    pub share_max: RatioPpm,
    /// Milliseconds between two samples of a job that is not offloaded.
    pub retry_ms: Millis,
}

/// State of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// When the next sample is due, in the caller's milliseconds; `None` for a compressible job.
    sample_due_ms: Option<Millis>,
}

/// What the kernel did with the pages of the job's last offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Bytes that zswap stored, before compression.
    pub original: Bytes,
    /// Bytes that they occupy in zswap.
    pub compressed: Bytes,
    /// Pages that zswap rejected because they did not compress.
    pub rejected: Pages,
}

/// A sample: test compression of a few cold pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Pages compressed.
    pub pages: u32,
    /// Pages among them whose compressed size exceeded the ratio.
    pub incompressible: u32,
}

/// Whether a job's memory is worth compressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Offload the job.
    Compressible,
    /// Do not offload the job.
    Incompressible,
    /// Do not offload the job, and sample it now.
    SampleDue,
}

/// The fewest pages for which the kernel's counters are used: a single page must not stop a job.
pub const STORED_PAGES_MIN: Pages = Pages(64);

/// Decides for a job by new evidence, if there is any. Deterministic.
#[must_use]
pub fn step(params: &Params, state: State, now_ms: Millis, page_bytes: u64, stored: Stored, sample: Option<Sample>) -> (State, Verdict) {
    let barred = State { sample_due_ms: Some(now_ms + params.retry_ms) };
    if let Some(sample) = sample.filter(|s| s.pages > 0) {
        let share = RatioPpm::of(u64::from(sample.incompressible), u64::from(sample.pages)).unwrap_or_default();
        return if share >= params.share_max { (barred, Verdict::Incompressible) } else { (State::default(), Verdict::Compressible) };
    }
    match state.sample_due_ms {
        Some(due) if now_ms >= due => (barred, Verdict::SampleDue),
        Some(_) => (state, Verdict::Incompressible),
        None if shrinks_badly(params, page_bytes, stored) => (barred, Verdict::Incompressible),
        None => (state, Verdict::Compressible),
    }
}

/// Whether the kernel's own counters say that the last offload was not worth it.
fn shrinks_badly(params: &Params, page_bytes: u64, stored: Stored) -> bool {
    let taken = stored.original.0 / page_bytes.max(1);
    let tried = taken.saturating_add(stored.rejected.0);
    if tried < STORED_PAGES_MIN.0 {
        return false;
    }
    let rejected = RatioPpm::of(stored.rejected.0, tried).unwrap_or_default();
    let ratio = RatioPpm::of(stored.compressed.0, stored.original.0).unwrap_or_default();
    rejected >= params.share_max || ratio > params.ratio_max
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: Params = Params { ratio_max: RatioPpm(730_000), share_max: RatioPpm(500_000), retry_ms: Millis(600_000) };

    fn stored(original_pages: u64, compressed_pages: u64, rejected: u64) -> Stored {
        Stored { original: Bytes(original_pages * 4096), compressed: Bytes(compressed_pages * 4096), rejected: Pages(rejected) }
    }

    fn check(stored: Stored, sample: Option<(u32, u32)>, want: Verdict) {
        let sample = sample.map(|(pages, incompressible)| Sample { pages, incompressible });
        assert_eq!(step(&PARAMS, State::default(), Millis(0), 4096, stored, sample).1, want);
    }

    #[test]
    fn the_kernels_counters_decide() {
        check(stored(1000, 333, 0), None, Verdict::Compressible);
        check(stored(1000, 800, 0), None, Verdict::Incompressible);
        check(stored(400, 133, 600), None, Verdict::Incompressible);
        check(stored(0, 0, 1000), None, Verdict::Incompressible);
        check(stored(0, 0, 0), None, Verdict::Compressible);
        check(stored(10, 10, 40), None, Verdict::Compressible);
    }

    #[test]
    fn a_sample_overrides_the_kernels_counters() {
        check(stored(1000, 800, 0), Some((64, 3)), Verdict::Compressible);
        check(stored(1000, 333, 0), Some((64, 32)), Verdict::Incompressible);
        check(stored(1000, 800, 0), Some((0, 0)), Verdict::Incompressible);
    }

    #[test]
    fn only_a_new_sample_resumes_offloading() {
        let bad = stored(1000, 900, 0);
        let none = Stored::default();
        let (state, verdict) = step(&PARAMS, State::default(), Millis(1_000), 4096, bad, None);
        assert_eq!(verdict, Verdict::Incompressible);
        assert_eq!(step(&PARAMS, state, Millis(600_999), 4096, none, None).1, Verdict::Incompressible);
        let (state, verdict) = step(&PARAMS, state, Millis(601_000), 4096, none, None);
        assert_eq!(verdict, Verdict::SampleDue);
        let (still, verdict) = step(&PARAMS, state, Millis(601_000), 4096, none, Some(Sample { pages: 64, incompressible: 60 }));
        assert_eq!(verdict, Verdict::Incompressible);
        assert_eq!(step(&PARAMS, still, Millis(602_000), 4096, none, None).1, Verdict::Incompressible);
        let (free, verdict) = step(&PARAMS, state, Millis(601_000), 4096, none, Some(Sample { pages: 64, incompressible: 0 }));
        assert_eq!((free, verdict), (State::default(), Verdict::Compressible));
    }
}
