//! The job that is being read from a trace.

use trace::compact::{DayNumbers, JobDay, Number, zswap_kib};
use trace::{Basis, Batch, Figures, JobId, Part};
use units::{Age, Bytes, Millis, RatioPpm, UnixMillis};

use super::error::Error;
use crate::fleet::Label;
use crate::series::{Compressibility, NewRow, RowError, Series};

/// Compressed size above which a page is not stored: 2990 of 4096 bytes (SDFM section 5.1).
pub const SIZE_MAX: RatioPpm = RatioPpm(730_000);
/// The tracker whose resolution is known of traces that do not show it: it never had another.
const LRU_GEN: &str = "lru_gen";
const LRU_GEN_RESOLVED_TO: Age = Age(2);

/// The figures that a replay reads, in the order of [`Job::push_part`].
pub(super) const FIGURES: [&str; 8] = [
    "start_unix_ms",
    "job_age_ms",
    "window_ms",
    "zswap_stored_bytes",
    "zswap_pool_bytes",
    "sampled_compressed_ppm",
    "resolved_to_scans",
    "sampled_pages",
];

/// Assumed compressed size for a job without a sample.
pub(super) const ASSUMED: RatioPpm = RatioPpm(333_333);

/// Calls `each` for a job whose entries have all been read. Returns whether it has any.
pub(super) fn finish_job(job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) -> bool {
    if job.series.is_empty() {
        return false;
    }
    let sampled = job.sampled.0.checked_div(job.sampled.1).and_then(|mean| u32::try_from(mean).ok());
    let sampled = sampled.or_else(|| RatioPpm::of(job.zswap.1, job.zswap.0).map(|ratio| ratio.0));
    job.series.assumed = sampled.is_none();
    job.series.compressibility = compressibility(sampled.map_or(ASSUMED, RatioPpm));
    each(&job.label, &job.series);
    true
}

/// Returns the compressibility of a job with this compressed size of its sample.
pub(super) fn compressibility(sampled: RatioPpm) -> Compressibility {
    Compressibility { compressible: if sampled > SIZE_MAX { RatioPpm(0) } else { RatioPpm::ONE }, compressed: sampled.min(RatioPpm::ONE) }
}

/// Reads compacted days as jobs.
pub(super) struct DayReader<'a> {
    job: &'a mut Job,
    each: &'a mut dyn FnMut(&Label, &Series),
    last: Option<JobId>,
    numbers: DayNumbers,
}

impl<'a> DayReader<'a> {
    /// Prepares to call `each` for the jobs.
    pub(super) fn new(job: &'a mut Job, each: &'a mut dyn FnMut(&Label, &Series)) -> Self {
        Self { job, each, last: None, numbers: DayNumbers::default() }
    }

    /// Adds the next day. `unpack` does what [`JobDay::unpack_onto`] does.
    pub(super) fn push(
        &mut self,
        day: &JobDay,
        unpack: impl FnOnce(&mut Vec<u32>, &mut DayNumbers) -> trace::Result<()>,
    ) -> Result<(), Error> {
        if self.last.as_ref() != Some(&day.id) {
            finish_job(self.job, self.each);
            self.job.begin_day(day);
            self.last = Some(day.id.clone());
        }
        self.job.push_day(day, &mut self.numbers, unpack)
    }

    /// Ends the last job.
    pub(super) fn finish(&mut self) {
        finish_job(self.job, self.each);
        self.job.series.clear();
        self.last = None;
    }
}

/// The job that is being read.
pub(super) struct Job {
    label: Label,
    pub(super) series: Series,
    /// Sum and number of the compressed sizes of its samples.
    sampled: (u64, u64),
    /// What zswap holds and what its pool takes, each summed over the entries.
    zswap: (u64, u64),
}

impl Job {
    /// Creates the state before the first job.
    pub(super) fn new(basis: &Basis) -> Self {
        Self { label: Label::default(), series: Series::new(&basis.thresholds), sampled: (0, 0), zswap: (0, 0) }
    }

    /// Starts a job.
    pub(super) fn begin(&mut self, [cluster, machine, class]: [&str; 3], start_unix_ms: UnixMillis) {
        self.series.clear();
        self.series.start_unix_ms = start_unix_ms;
        cluster.clone_into(&mut self.label.cluster);
        machine.clone_into(&mut self.label.machine);
        class.clone_into(&mut self.label.class);
        self.sampled = (0, 0);
        self.zswap = (0, 0);
    }

    /// Adds the compressed size of the sample of one entry, unless it has none.
    pub(super) fn add_sampled(&mut self, compressed: RatioPpm) {
        if compressed > RatioPpm(0) {
            self.sampled = (self.sampled.0.saturating_add(u64::from(compressed.0)), self.sampled.1 + 1);
        }
    }

    /// Adds what zswap holds of one entry, and what its pool takes for that, in the same unit.
    pub(super) fn add_zswap(&mut self, stored: u64, pool: u64) {
        self.zswap = (self.zswap.0.saturating_add(stored), self.zswap.1.saturating_add(pool));
    }

    /// Appends an entry.
    pub(super) fn push(&mut self, id: &JobId, tracker: &str, figures: &Figures, promotions: &[u64], cold: &[u64]) -> Result<(), Error> {
        self.add_sampled(figures.sampled_compressed_ppm);
        self.add_zswap(zswap_kib(figures.zswap_stored_bytes), zswap_kib(figures.zswap_pool_bytes));
        let pushed = self.push_row(tracker, figures, promotions, cold);
        let (job, machine, start_unix_ms) = (&id.job, &id.machine, figures.start_unix_ms);
        pushed.map_err(|source| Error::Row { job: job.clone(), machine: machine.clone(), start_unix_ms, source })
    }

    /// Starts the job of a part.
    pub(super) fn begin_part(&mut self, batch: &Batch, part: &Part<'_>) {
        self.begin([part.cluster, part.machine, part.class], UnixMillis(batch.figure::<0>(part.rows.start)));
    }

    /// Appends the rows of a part, with the figures of [`FIGURES`].
    pub(super) fn push_part(&mut self, batch: &Batch, part: &Part<'_>) -> Result<(), Error> {
        let rows = part.rows.clone();
        for row in rows.clone() {
            self.add_sampled(RatioPpm(u32::try_from(batch.figure::<5>(row)).unwrap_or(u32::MAX)));
            self.add_zswap(zswap_kib(Bytes(batch.figure::<3>(row))), zswap_kib(Bytes(batch.figure::<4>(row))));
        }
        let new = rows.clone().map(|row| NewRow {
            age_ms: Millis(batch.figure::<1>(row)),
            window_ms: Millis(batch.figure::<2>(row)),
            resolved_to: resolved_to(part.tracker, batch.figure::<6>(row)),
            sampled: u32::try_from(batch.figure::<7>(row)).unwrap_or(u32::MAX),
        });
        let pushed = self.series.append(part.tracker, new, |sums| batch.append_sums(rows.clone(), sums));
        pushed.map_err(|(index, source)| {
            let start_unix_ms = UnixMillis(batch.figure::<0>(rows.start + index));
            Error::Row { job: part.job.to_owned(), machine: part.machine.to_owned(), start_unix_ms, source }
        })
    }

    /// Starts the job of a compacted day, which is pushed next.
    fn begin_day(&mut self, day: &JobDay) {
        self.begin([&day.id.cluster, &day.id.machine, &day.class], day.day_unix_ms);
    }

    /// Appends the entries of a compacted day. `unpack` appends their suffix sums and replaces their numbers.
    fn push_day(
        &mut self,
        day: &JobDay,
        numbers: &mut DayNumbers,
        unpack: impl FnOnce(&mut Vec<u32>, &mut DayNumbers) -> trace::Result<()>,
    ) -> Result<(), Error> {
        let failed = |start_unix_ms, source| {
            let (job, machine) = (day.id.job.clone(), day.id.machine.clone());
            Error::Row { job, machine, start_unix_ms, source }
        };
        if day.page_shift > 0 {
            // The largest count has 32 significant bits before the shift.
            return Err(failed(day.day_unix_ms, RowError::Count(1 << (31 + day.page_shift.min(32)))));
        }
        let is_first = self.series.is_empty();
        let pushed = self.series.append_unpacked(|sums| unpack(sums, numbers))?;
        let start = |entry: usize| day.day_unix_ms + Millis(u64::from(numbers.get(entry, Number::StartMs)));
        if is_first && !numbers.is_empty() {
            self.series.start_unix_ms = start(0);
        }
        let pushed = pushed.and_then(|()| self.push_numbers(day, numbers));
        pushed.map_err(|(entry, source)| failed(start(entry), source))
    }

    /// Appends the numbers of entries whose suffix sums have been appended.
    fn push_numbers(&mut self, day: &JobDay, numbers: &DayNumbers) -> Result<(), (usize, RowError)> {
        let begin = self.series.start_unix_ms;
        let (mut sampled, mut zswap) = ((0, 0), (0, 0));
        let rows = numbers.rows().map(|numbers| {
            let age_ms = match numbers.get(Number::JobAgeMs) {
                // The field saturates at 49 days. Longer than any warm-up, the exact age makes no difference:
                // continue with the time.
                u32::MAX => Millis(u64::from(u32::MAX)) + (day.day_unix_ms + Millis(u64::from(numbers.get(Number::StartMs)))).since(begin),
                age_ms => Millis(u64::from(age_ms)),
            };
            // No day has so many entries that sums of 32 bits overflow 64.
            let compressed = u64::from(numbers.get(Number::SampledCompressedPpm));
            sampled = (sampled.0 + compressed, sampled.1 + u64::from(compressed > 0));
            zswap = (zswap.0 + u64::from(numbers.get(Number::ZswapStored)), zswap.1 + u64::from(numbers.get(Number::ZswapPool)));
            NewRow {
                age_ms,
                window_ms: Millis(u64::from(numbers.get(Number::WindowMs))),
                resolved_to: resolved_to(&day.tracker, u64::from(numbers.get(Number::ResolvedToScans))),
                sampled: numbers.get(Number::SampledPages),
            }
        });
        self.series.append(&day.tracker, rows, |_| {})?;
        self.sampled = (self.sampled.0.saturating_add(sampled.0), self.sampled.1 + sampled.1);
        self.add_zswap(zswap.0, zswap.1);
        Ok(())
    }

    fn push_row(&mut self, tracker: &str, figures: &Figures, promotions: &[u64], cold: &[u64]) -> Result<(), RowError> {
        self.series.push(figures.job_age_ms, figures.window_ms, promotions, cold)?;
        self.set_origin(tracker, figures.resolved_to_scans, figures.sampled_pages.0);
        Ok(())
    }

    /// Sets how the ages of the last entry were obtained.
    pub(super) fn set_origin(&mut self, tracker: &str, resolved_to_scans: u64, sampled_pages: u64) {
        self.series.set_origin(tracker, resolved_to(tracker, resolved_to_scans), u32::try_from(sampled_pages).unwrap_or(u32::MAX));
    }
}

/// Returns the oldest age that a tracker distinguished.
fn resolved_to(tracker: &str, scans: u64) -> Age {
    match u8::try_from(scans) {
        Ok(0) if tracker == LRU_GEN => LRU_GEN_RESOLVED_TO,
        resolved_to => resolved_to.map_or(Age::MAX, Age),
    }
}
