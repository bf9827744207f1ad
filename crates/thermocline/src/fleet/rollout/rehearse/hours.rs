//! What each machine of a fleet would report in each hour, under several parameters at once: jobs replayed through the controller, and
//! their entries summed as a rollout's evidence is.

use std::collections::BTreeMap;

use ::rollout::evidence::MachineId;
use ::rollout::metric::Sums;
use model::fleet::{Account, Label};
use model::grid::{Grid, Setup};
use model::replay::Replay;
use model::series::Series;
use model::tally::Tally;
use policy::thresholds::Thresholds;
use trace::{Basis, Figures};
use units::{Bytes, Millis, Pages, RatioPpm, UnixMillis};

pub(super) const HOUR: Millis = Millis::hours(1);

/// What a promotion stalls a job: the 6 us of a decompression (SDFM section 6.2) and the fault.
const STALL_US: u64 = 10;

/// Sums of one hour of a machine, in little memory: a fleet has a million of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hour {
    sums: [f32; 9],
    over: u16,
    rated: u16,
    pub(super) entries: u16,
}

impl Hour {
    fn add(&mut self, sums: &Sums) {
        let Sums { time_ms, memory, saved, far, cold, working_set, working_set_minutes, promoted, memory_stall_us, .. } = *sums;
        let parts = [time_ms, memory, saved, far, cold, working_set, working_set_minutes, promoted, memory_stall_us];
        for (sum, part) in self.sums.iter_mut().zip(parts) {
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough for a mean over a day")]
            let part = part as f32;
            *sum += part;
        }
        self.over += u16::from(sums.over > 0.0);
        self.rated += u16::from(sums.rates.total() > 0.0);
        self.entries += 1;
    }

    /// The sums as evidence has them; of the promotion rates only how many there were.
    pub(super) fn to_sums(self) -> Sums {
        let [time_ms, memory, saved, far, cold, working_set, working_set_minutes, promoted, memory_stall_us] = self.sums.map(f64::from);
        let mut sums =
            Sums { time_ms, memory, saved, far, cold, working_set, working_set_minutes, promoted, memory_stall_us, ..Sums::default() };
        sums.over = f64::from(self.over);
        sums.rates.add_many(0.0, u32::from(self.rated));
        sums
    }
}

/// Parameters, with their replay.
#[derive(Clone)]
struct Arm {
    replay: Replay,
    grid: Grid,
    /// Scratch of the replay.
    tally: Tally,
}

/// The hours of all machines, for each of the parameters.
#[derive(Clone)]
pub(super) struct Hours {
    arms: Vec<Arm>,
    basis: Basis,
    objective: f64,
    start: UnixMillis,
    hours: usize,
    /// By machine: hour by hour, the arms beside each other.
    pub(super) machines: BTreeMap<MachineId, Vec<Hour>>,
}

impl Hours {
    /// Hours of a fleet that starts at `start`, under each setup with its percentile and warm-up; `None` if no threshold is old enough
    /// for one of them.
    pub(super) fn new(
        arms: &[(Setup, RatioPpm, Millis)],
        thresholds: Thresholds,
        objective: f64,
        start: UnixMillis,
        hours: usize,
    ) -> Option<Self> {
        let arm = |&(setup, percentile, warmup): &(Setup, RatioPpm, Millis)| {
            let grid = Grid::new(vec![percentile], vec![warmup]).ok()?;
            Some(Arm { replay: Replay::new(&grid, &setup, &thresholds)?, tally: Tally::new(&grid), grid })
        };
        let arms = arms.iter().map(arm).collect::<Option<Vec<_>>>()?;
        let basis = Basis { thresholds, scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) };
        Some(Self { arms, basis, objective, start, hours, machines: BTreeMap::new() })
    }

    /// The hour `at` of a machine under one of the parameters.
    pub(super) fn of(hours: &[Hour], arms: usize, at: usize, arm: usize) -> Hour {
        hours.get(at * arms + arm).copied().unwrap_or_default()
    }

    pub(super) fn arms(&self) -> usize {
        self.arms.len()
    }
}

impl Account for Hours {
    fn job(&mut self, label: &Label, series: &Series) {
        let count = self.arms.len();
        let id = MachineId { cluster: label.cluster.clone(), machine: label.machine.clone() };
        let hours = self.machines.entry(id).or_insert_with(|| vec![Hour::default(); count * self.hours]);
        for (number, arm) in self.arms.iter_mut().enumerate() {
            let mut first_age = None;
            // The threshold that was decided after an entry is in effect during the next one.
            let mut threshold = None;
            let (basis, objective, start) = (&self.basis, self.objective, self.start);
            arm.tally = Tally::new(&arm.grid);
            arm.replay.job_observed(series, &mut arm.tally, &mut |row, spans, warm| {
                let first = *first_age.get_or_insert(row.age_ms);
                let began = series.start_unix_ms + row.age_ms.saturating_sub(first);
                let at = usize::try_from(began.since(start).0 / HOUR.0).unwrap_or(usize::MAX);
                if let Some(hour) = at.checked_mul(count).and_then(|at| hours.get_mut(at + number)) {
                    let mut sums = Sums::default();
                    sums.add(&figures(series, row, threshold, began), &[], &[], basis, objective);
                    sums.cold = pages(row.cold[1]) * 4096.0 * row.window_ms.as_f64();
                    hour.add(&sums);
                }
                threshold = spans.first().filter(|_| warm > 0).map(|span| span.threshold);
            });
        }
    }

    fn merge(&mut self, other: Self) {
        // A machine is in one piece of its fleet.
        self.machines.extend(other.machines);
    }
}

/// The entry that an agent would have written.
fn figures(series: &Series, row: &model::series::Row<'_>, threshold: Option<usize>, start_unix_ms: UnixMillis) -> Figures {
    let bytes = |pages: u64| Bytes(pages * 4096);
    let share = |pages: u32, ratio: RatioPpm| ratio.share_of(u64::from(pages));
    let (cold, promoted) = threshold.map_or((0, 0), |threshold| (row.cold[threshold + 1], row.promotions[threshold + 1]));
    let far = share(cold, series.compressibility.compressible);
    let promoted = share(promoted, series.compressibility.compressible);
    let pool = series.compressibility.compressed.share_of(far);
    Figures {
        start_unix_ms,
        duration_ms: row.window_ms,
        periods: 5,
        window_ms: row.window_ms,
        working_set_bytes: bytes(u64::from(row.cold[0] - row.cold[1])),
        memory_bytes: bytes(u64::from(row.cold[0]) - far + pool),
        zswap_stored_bytes: bytes(far),
        zswap_pool_bytes: bytes(pool),
        promoted_pages: Pages(promoted),
        memory_stall_us: promoted * STALL_US,
        far_periods: if threshold.is_some() { 5 } else { 0 },
        ..Figures::default()
    }
}

fn pages(count: u32) -> f64 {
    f64::from(count)
}
