//! `thermocline trace show`: a summary of each job.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use trace::{Basis, Entry, JobId};
use units::{Age, Bytes, Millis, RatioPpm, UnixMillis};

use super::{Stream, when};
use crate::options::Format;
use crate::output::print;

/// The percentile of the rates shown: the SLI of SDFM section 6.2 is the 98th percentile of a fleet.
const PERCENTILE: RatioPpm = RatioPpm(980_000);

/// One job, over all its entries. Sizes are means over time.
#[derive(Debug, Default, Serialize)]
struct Shown {
    #[serde(flatten)]
    id: JobId,
    class: String,
    policy: String,
    tracker: String,
    /// Lowest resolution of its entries, in scans; 0 if an entry does not show it.
    resolved_to_scans: u64,
    /// Mean number of sampled pages; 0 if all were counted.
    sampled_pages: u64,
    entries: u64,
    first_unix_ms: UnixMillis,
    last_unix_ms: UnixMillis,
    duration_ms: Millis,
    memory_bytes: Bytes,
    working_set_bytes: Bytes,
    cold_bytes: Bytes,
    far_bytes: Bytes,
    saved_bytes: i64,
    /// Far memory over cold memory.
    coverage_ratio: f64,
    /// Over entries with far memory; `null` without any.
    promotion_rate_p98_ratio_per_min: Option<f64>,
    memory_stall_ratio: f64,
    io_stall_ratio: f64,
    last_decision: String,
}

/// Sums of one job, weighted with time.
#[derive(Default)]
struct Sums {
    shown: Shown,
    sampled: u128,
    memory: u128,
    working_set: u128,
    cold: u128,
    far: u128,
    pool: u128,
    slow: u128,
    file_out: u128,
    memory_stall_us: u64,
    io_stall_us: u64,
    /// Promotions per minute in millionths of the working set.
    rates_ppm: Vec<u64>,
}

/// Shows each job of the stream; in JSON, one per line.
pub(super) fn show(stream: &mut Stream, format: Format) -> Result<()> {
    if format == Format::Text {
        let [observed, memory, working] = ["observed", "memory", "working"];
        let row = format!(
            "{observed:>9} {memory:>10} {working:>10} {:>10} {:>10} {:>8} {:>12} {:>8}",
            "cold", "saved", "covered", "promotions", "stall"
        );
        print(format, &(), || format!("{row}  job\n"))?;
    }
    let basis = stream.basis;
    let mut sums: Option<Sums> = None;
    while let Some(entry) = stream.next()? {
        if let Some(done) = sums.take_if(|sums| sums.shown.id != entry.id) {
            print_job(done.finish(), format)?;
        }
        let sums = sums.get_or_insert_with(|| Sums { shown: Shown { id: entry.id.clone(), ..Shown::default() }, ..Sums::default() });
        sums.add(&entry, &basis);
    }
    sums.map_or(Ok(()), |sums| print_job(sums.finish(), format))
}

fn print_job(job: Shown, format: Format) -> Result<()> {
    print(format, &job, || {
        let percent = |ratio: f64| format!("{:.2}%", ratio * 100.0);
        let hours = format!("{}.{} h", job.duration_ms.0 / 3_600_000, job.duration_ms.0 % 3_600_000 / 360_000);
        let sizes = [job.memory_bytes, job.working_set_bytes, job.cold_bytes].map(|bytes| bytes.to_string());
        let saved = if job.saved_bytes < 0 {
            format!("-{}", Bytes(job.saved_bytes.unsigned_abs()))
        } else {
            Bytes(job.saved_bytes.unsigned_abs()).to_string()
        };
        let promotions = job.promotion_rate_p98_ratio_per_min.map_or_else(|| "-".to_owned(), |rate| percent(rate) + "/min");
        let [memory, working, cold] = sizes;
        let mut text = format!("{hours:>9} {memory:>10} {working:>10} {cold:>10} {saved:>10}");
        let (covered, stall) = (percent(job.coverage_ratio), percent(job.memory_stall_ratio));
        let _ = write!(text, " {covered:>8} {promotions:>12} {stall:>8}  {} on {}", job.id.job, job.id.machine);
        let (first, last) = (when(job.first_unix_ms), when(job.last_unix_ms));
        let _ = writeln!(text, " ({}, {}; {first} to {last}; {})", job.class, job.last_decision, origin(&job));
        text
    })
}

/// How the ages of a job were obtained.
fn origin(job: &Shown) -> String {
    let mut text = if job.tracker.is_empty() { "unknown tracker".to_owned() } else { job.tracker.clone() };
    match job.resolved_to_scans {
        0 => text += ", unknown resolution",
        scans if scans >= u64::from(Age::MAX.0) => {}
        scans => _ = write!(text, ", ages up to {scans} scans"),
    }
    if job.sampled_pages > 0 {
        let _ = write!(text, ", {} pages sampled", job.sampled_pages);
    }
    text
}

impl Sums {
    fn add(&mut self, entry: &Entry, basis: &Basis) {
        let Entry { labels, figures, cold_pages, .. } = entry;
        let shown = &mut self.shown;
        if shown.entries == 0 {
            shown.first_unix_ms = figures.start_unix_ms;
            shown.resolved_to_scans = figures.resolved_to_scans;
        }
        shown.tracker.clone_from(&labels.tracker);
        shown.resolved_to_scans = shown.resolved_to_scans.min(figures.resolved_to_scans);
        shown.entries += 1;
        shown.last_unix_ms = figures.start_unix_ms + figures.duration_ms;
        shown.duration_ms += figures.duration_ms;
        (shown.class, shown.policy, shown.last_decision) = (labels.class.clone(), labels.policy.clone(), labels.decision.clone());
        let time = u128::from(figures.duration_ms.0);
        let cold = basis.page_bytes.saturating_mul(cold_pages.iter().skip(1).sum());
        self.sampled += u128::from(figures.sampled_pages.0) * time;
        self.memory += u128::from(figures.memory_bytes.0) * time;
        self.working_set += u128::from(figures.working_set_bytes.0) * time;
        self.cold += u128::from(cold.0) * time;
        self.far += u128::from((figures.zswap_stored_bytes + figures.swap_bytes).0) * time;
        self.slow += u128::from(figures.slow_node_bytes.0) * time;
        self.pool += u128::from(figures.zswap_pool_bytes.0) * time;
        self.file_out += u128::from(figures.file_out_bytes.0) * time;
        self.memory_stall_us += figures.memory_stall_us;
        self.io_stall_us += figures.io_stall_us;
        if figures.far_periods > 0 {
            let per = u128::from(figures.working_set_bytes.0 / basis.page_bytes.0.max(1)) * time;
            let scaled = u128::from(figures.promoted_pages.0) * 60_000 * 1_000_000;
            self.rates_ppm.extend(scaled.checked_div(per).and_then(|ppm| u64::try_from(ppm).ok()));
        }
    }

    fn finish(mut self) -> Shown {
        let time = u128::from(self.shown.duration_ms.0);
        let mean = |sum: u128| sum.checked_div(time).and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0);
        let signed = |sum: u128| i64::try_from(mean(sum)).unwrap_or(i64::MAX);
        let ratio = |us: u64| RatioPpm::of(us, self.shown.duration_ms.0.saturating_mul(1_000)).map_or(0.0, RatioPpm::as_f64);
        self.rates_ppm.sort_unstable();
        // The nearest-rank percentile.
        let rank = (self.rates_ppm.len() as u64 * u64::from(PERCENTILE.0)).div_ceil(1_000_000);
        let rate = usize::try_from(rank).ok().and_then(|rank| self.rates_ppm.get(rank.checked_sub(1)?));
        Shown {
            sampled_pages: mean(self.sampled),
            memory_bytes: Bytes(mean(self.memory)),
            working_set_bytes: Bytes(mean(self.working_set)),
            cold_bytes: Bytes(mean(self.cold)),
            far_bytes: Bytes(mean(self.far)),
            saved_bytes: signed(self.far + self.file_out + self.slow) - signed(self.pool),
            coverage_ratio: RatioPpm::of(mean(self.far), mean(self.cold)).map_or(0.0, |ratio| ratio.as_f64().min(1.0)),
            #[expect(clippy::cast_precision_loss, reason = "shown to people")]
            promotion_rate_p98_ratio_per_min: rate.map(|&ppm| ppm as f64 / 1e6),
            memory_stall_ratio: ratio(self.memory_stall_us),
            io_stall_ratio: ratio(self.io_stall_us),
            ..self.shown
        }
    }
}
