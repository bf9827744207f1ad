//! Metrics for comparing groups of machines: figures of a machine's trace that can be added.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::{Basis, Figures};
use units::Millis;

use crate::contrast::Part;

settings::choice! {
    /// Which values of a metric are better.
    Better {
        /// Lower values.
        Lower = "lower",
        /// Higher values.
        Higher = "higher",
    }
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A share, between 0 and 1.
    Ratio,
    /// A share of the working set per minute.
    RatioPerMinute,
    /// Events per day of one job.
    PerJobDay,
    /// The unit of the operator's query.
    Query,
}

/// A figure by which groups are compared.
#[derive(Debug)]
pub struct Metric {
    /// Name in configuration and reports.
    pub name: &'static str,
    /// Meaning, in a sentence.
    pub meaning: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Which direction is better.
    pub better: Better,
    part: fn(&Sums) -> (f64, f64),
}

impl Metric {
    /// Returns the metric with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        METRICS.iter().find(|metric| metric.name == name)
    }

    /// Returns a machine's contribution to its group's figure.
    #[must_use]
    pub fn part(&self, sums: &Sums) -> Part {
        let (numerator, denominator) = (self.part)(sums);
        Part { numerator, denominator }
    }
}

/// All metrics.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "coverage",
        meaning: "far memory as a share of cold memory",
        unit: Unit::Ratio,
        better: Better::Higher,
        part: |sums| (sums.far, sums.cold),
    },
    Metric {
        name: "saved",
        meaning: "DRAM saved by far memory, as a share of what the jobs would use without it",
        unit: Unit::Ratio,
        better: Better::Higher,
        part: |sums| (sums.saved, sums.memory + sums.saved),
    },
    Metric {
        name: "promotion_rate_over",
        meaning: "share of the entries with far memory on whose promotion rate exceeds the objective: 2% correspond to a 98th \
                  percentile that just meets it",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.over, sums.rates.total()),
    },
    Metric {
        name: "promotion_rate",
        meaning: "promotions per minute, as a share of the working set",
        unit: Unit::RatioPerMinute,
        better: Better::Lower,
        part: |sums| (sums.promoted, sums.working_set_minutes),
    },
    Metric {
        name: "memory_stall",
        meaning: "share of a job's time in which some task waited for memory",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.memory_stall_us, sums.time_ms * 1e3),
    },
    Metric {
        name: "io_stall",
        meaning: "share of a job's time in which some task waited for I/O",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.io_stall_us, sums.time_ms * 1e3),
    },
    Metric {
        name: "slowdown",
        meaning: "time that jobs lost to far memory, as a share of the CPU time of their own work; of machines and jobs whose delay \
                  accounting the agent reads",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.lost_us, sums.own_work_us),
    },
    Metric {
        name: "offload_cpu",
        meaning: "CPU time that the agent used to move memory out, compression included, as a share of one core per job",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.offload_cpu_us, sums.time_ms * 1e3),
    },
    Metric {
        name: "evictions",
        meaning: "processes killed by the out-of-memory killer, per job and day",
        unit: Unit::PerJobDay,
        better: Better::Lower,
        part: |sums| (sums.oom_kills, sums.time_ms / 86_400_000.0),
    },
    Metric {
        name: "cold",
        meaning: "cold memory as a share of all memory with a known age",
        unit: Unit::Ratio,
        better: Better::Higher,
        part: |sums| (sums.cold, sums.cold + sums.working_set),
    },
    Metric {
        name: "cold_accesses",
        meaning: "accesses per minute to pages older than the minimum cold age, as a share of the working set: the promotions if all \
                  cold memory were far",
        unit: Unit::RatioPerMinute,
        better: Better::Lower,
        part: |sums| (sums.cold_accesses, sums.working_set_minutes),
    },
    Metric {
        name: "pool_touched",
        meaning: "share of a pool's guests that touched more of the pool memory that a model gave them than is tolerated",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.pool_touched, sums.pool_guests),
    },
    Metric {
        name: "pool_mitigated",
        meaning: "share of the same guests whose pool memory was moved to local memory",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.pool_mitigated, sums.pool_guests),
    },
    Metric {
        name: "pool_unpredicted",
        meaning: "share of a pool's guests for which a model had no prediction, although their customer has a history: they differ from \
                  its training data, or it is not valid at their time",
        unit: Unit::Ratio,
        better: Better::Lower,
        part: |sums| (sums.pool_unpredicted, sums.pool_asked),
    },
];

/// Sums over some entries of a machine. Levels are weighted with time, in bytes times milliseconds.
///
/// Sums of bytes times time exceed 64 bits; an `f64` holds 16 digits of them. They are added in the order of files and
/// rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Duration of all entries of its jobs, in milliseconds.
    pub time_ms: f64,
    /// Memory charged to the jobs.
    pub memory: f64,
    /// DRAM saved.
    pub saved: f64,
    /// Far memory.
    pub far: f64,
    /// Memory older than the minimum cold age.
    pub cold: f64,
    /// Memory younger than the minimum cold age.
    pub working_set: f64,
    /// Pages of the working set, times minutes.
    pub working_set_minutes: f64,
    /// Pages promoted.
    pub promoted: f64,
    /// Accesses to cold pages, scaled from the time that the histograms cover to all of it.
    pub cold_accesses: f64,
    /// Microseconds of memory stall.
    pub memory_stall_us: f64,
    /// Microseconds of I/O stall.
    pub io_stall_us: f64,
    /// Microseconds that were lost to far memory.
    pub lost_us: f64,
    /// Microseconds of CPU time of the jobs' own work, while that was measured.
    pub own_work_us: f64,
    /// Microseconds of CPU time that the agent used to move memory out.
    pub offload_cpu_us: f64,
    /// Processes killed by the out-of-memory killer.
    pub oom_kills: f64,
    /// Entries with far memory on whose promotion rate exceeds the objective.
    pub over: f64,
    /// Guests of a pool that got pool memory by a model, and have ended.
    pub pool_guests: f64,
    /// Of them, those that touched more of it than is tolerated.
    pub pool_touched: f64,
    /// Of them, those whose pool memory was moved to local memory.
    pub pool_mitigated: f64,
    /// Guests of a pool with a history for which a model was asked, and that have ended.
    pub pool_asked: f64,
    /// Of them, those for which it had no prediction.
    pub pool_unpredicted: f64,
    /// Promotion rates of all entries with far memory on.
    pub rates: Rates,
}

impl Sums {
    /// Adds an entry. `objective` is a promotion rate per minute, as a share of the working set.
    pub fn add(&mut self, figures: &Figures, cold_pages: &[u64], promotions_pages: &[u64], basis: &Basis, objective: f64) {
        let time = figures.duration_ms.as_f64();
        let page = float(basis.page_bytes.0.max(1));
        let far = float(figures.zswap_stored_bytes.0) + float(figures.swap_bytes.0);
        let beside = float(figures.file_out_bytes.0) + float(figures.slow_node_bytes.0);
        let working_pages = float(figures.working_set_bytes.0) / page;
        self.time_ms += time;
        self.memory += float(figures.memory_bytes.0) * time;
        self.saved += (far + beside - float(figures.zswap_pool_bytes.0)) * time;
        self.far += far * time;
        self.cold += pages(cold_pages) * page * time;
        self.working_set += float(figures.working_set_bytes.0) * time;
        self.working_set_minutes += working_pages * time / 60_000.0;
        self.promoted += float(figures.promoted_pages.0);
        if figures.window_ms > Millis::ZERO {
            self.cold_accesses += pages(promotions_pages) * time / figures.window_ms.as_f64();
        }
        self.memory_stall_us += float(figures.memory_stall_us);
        self.io_stall_us += float(figures.io_stall_us);
        self.lost_us += float(figures.lost_us);
        self.own_work_us += float(figures.own_work_us);
        self.offload_cpu_us += float(figures.offload_cpu_us);
        self.oom_kills += float(figures.oom_kills);
        if figures.far_periods > 0 && time > 0.0 {
            // Promotions of a job without a working set were not of cold pages: the rate is infinite.
            let promoted = float(figures.promoted_pages.0) * 60_000.0 / time;
            let rate = if promoted == 0.0 { 0.0 } else { promoted / working_pages };
            self.rates.add(rate);
            self.over += f64::from(u8::from(rate > objective));
        }
    }

    /// Adds the sums of another part of the same machine's entries.
    pub fn merge(&mut self, other: &Self) {
        let Self { time_ms, memory, saved, far, cold, working_set, working_set_minutes, promoted, .. } = other;
        let Self { cold_accesses, memory_stall_us, io_stall_us, lost_us, own_work_us, offload_cpu_us, oom_kills, over, .. } = other;
        let Self { pool_guests, pool_touched, pool_mitigated, pool_asked, pool_unpredicted, rates, .. } = other;
        for (sum, part) in [
            (&mut self.time_ms, time_ms),
            (&mut self.memory, memory),
            (&mut self.saved, saved),
            (&mut self.far, far),
            (&mut self.cold, cold),
            (&mut self.working_set, working_set),
            (&mut self.working_set_minutes, working_set_minutes),
            (&mut self.promoted, promoted),
            (&mut self.cold_accesses, cold_accesses),
            (&mut self.memory_stall_us, memory_stall_us),
            (&mut self.io_stall_us, io_stall_us),
            (&mut self.lost_us, lost_us),
            (&mut self.own_work_us, own_work_us),
            (&mut self.offload_cpu_us, offload_cpu_us),
            (&mut self.oom_kills, oom_kills),
            (&mut self.over, over),
            (&mut self.pool_guests, pool_guests),
            (&mut self.pool_touched, pool_touched),
            (&mut self.pool_mitigated, pool_mitigated),
            (&mut self.pool_asked, pool_asked),
            (&mut self.pool_unpredicted, pool_unpredicted),
        ] {
            *sum += part;
        }
        self.rates.merge(rates);
    }
}

/// Returns all pages but those of the youngest bucket.
fn pages(histogram: &[u64]) -> f64 {
    float(histogram.iter().skip(1).fold(0, |sum: u64, &count| sum.saturating_add(count)))
}

#[expect(clippy::cast_precision_loss, reason = "16 digits of a size are enough")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Promotion rates, counted in bins: 64 per octave (each 1.1 % wide) from 2^-20 (0.0001 %/min) to 1. Only bins with
/// counts are stored, because a machine has few of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates(BTreeMap<u16, u32>);

const PER_OCTAVE: f64 = 64.0;
const OCTAVES: f64 = 20.0;
/// The bin of rates above one. Bin 0 holds all rates at or below the lowest edge.
const ABOVE: u16 = 20 * 64 + 1;

impl Rates {
    /// Counts a rate.
    pub fn add(&mut self, rate: f64) {
        self.add_many(rate, 1);
    }

    /// Counts a rate `times` times.
    pub fn add_many(&mut self, rate: f64, times: u32) {
        let above = (rate.log2() + OCTAVES) * PER_OCTAVE;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the bins; NaN is in bin 0")]
        let bin = if rate > 0.0 { above.ceil().clamp(0.0, f64::from(ABOVE)) as u16 } else { 0 };
        let counted = self.0.entry(bin).or_default();
        *counted = counted.saturating_add(times);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (bin, more) in &other.0 {
            let counted = self.0.entry(*bin).or_default();
            *counted = counted.saturating_add(*more);
        }
    }

    /// Returns the number of rates counted.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.0.values().copied().map(f64::from).sum()
    }

    /// Returns the rate that this share of all does not exceed: the upper edge of its bin, infinite above one; `None`
    /// without rates.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<f64> {
        Self::percentile_of([self], share)
    }

    /// Returns the same for several together.
    #[must_use]
    pub fn percentile_of<'a>(all: impl IntoIterator<Item = &'a Self>, share: f64) -> Option<f64> {
        let mut counts = [0u32; ABOVE as usize + 1];
        for rates in all {
            rates.0.iter().for_each(|(&bin, &times)| counts[usize::from(bin)] = counts[usize::from(bin)].saturating_add(times));
        }
        let rank = (share * counts.iter().copied().map(f64::from).sum::<f64>()).ceil().max(1.0);
        let mut counted = 0.0;
        let (bin, _) = (0..=ABOVE).zip(&counts).find(|&(_, &count)| {
            counted += f64::from(count);
            counted >= rank
        })?;
        Some(if bin == ABOVE { f64::INFINITY } else { (f64::from(bin) / PER_OCTAVE - OCTAVES).exp2() })
    }
}

#[cfg(test)]
mod tests {
    use policy::thresholds::Thresholds;
    use units::{Bytes, Pages};

    use super::*;

    fn basis() -> Basis {
        Basis { thresholds: Thresholds::log_spaced(2).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) }
    }

    fn figures() -> Figures {
        Figures {
            duration_ms: Millis(300_000),
            periods: 5,
            window_ms: Millis(240_000),
            working_set_bytes: Bytes(1_000 * 4096),
            memory_bytes: Bytes(1_300 * 4096),
            zswap_stored_bytes: Bytes(300 * 4096),
            zswap_pool_bytes: Bytes(100 * 4096),
            promoted_pages: Pages(50),
            memory_stall_us: 3_000_000,
            lost_us: 2_000_000,
            own_work_us: 80_000_000,
            offload_cpu_us: 600_000,
            oom_kills: 2,
            far_periods: 5,
            ..Figures::default()
        }
    }

    #[test]
    fn metrics_agree_with_manual_computation() {
        let mut sums = Sums::default();
        sums.add(&figures(), &[1_000, 500, 100], &[900, 5, 3], &basis(), 0.002);
        let check = |name: &str, expected: f64| {
            let Part { numerator, denominator } = Metric::named(name).unwrap().part(&sums);
            assert!((numerator / denominator / expected - 1.0).abs() < 1e-12, "{name}: {numerator}/{denominator}, not {expected}");
        };
        check("coverage", 0.5);
        check("saved", 200.0 / 1_500.0);
        check("promotion_rate_over", 1.0);
        check("promotion_rate", 0.01);
        check("memory_stall", 0.01);
        check("slowdown", 0.025);
        check("offload_cpu", 0.002);
        check("evictions", 2.0 * 288.0);
        check("cold", 600.0 / 1_600.0);
        check("cold_accesses", 0.002);
        assert_eq!(Metric::named("nonesuch").map(|metric| metric.name), None);
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let all: Vec<Figures> = (1..=9).map(|n| Figures { promoted_pages: Pages(n * n), oom_kills: n, ..figures() }).collect();
        let sum = |entries: &[Figures]| {
            let mut sums = Sums::default();
            entries.iter().for_each(|figures| sums.add(figures, &[1_000, 9, 0], &[1, 2, 3], &basis(), 0.002));
            sums
        };
        let mut parts = sum(&all[..4]);
        parts.merge(&sum(&all[4..]));
        assert_eq!(parts, sum(&all));
    }

    #[test]
    fn a_job_without_a_working_set_has_the_highest_rate() {
        let mut sums = Sums::default();
        sums.add(&Figures { working_set_bytes: Bytes(0), ..figures() }, &[], &[], &basis(), 0.002);
        assert_eq!((sums.over, sums.rates.percentile(0.98)), (1.0, Some(f64::INFINITY)));
        sums.add(&Figures { promoted_pages: Pages(0), working_set_bytes: Bytes(0), ..figures() }, &[], &[], &basis(), 0.002);
        sums.add(&Figures { far_periods: 0, ..figures() }, &[], &[], &basis(), 0.002);
        assert_eq!((sums.over, sums.rates.total()), (1.0, 2.0));
    }

    #[test]
    fn percentiles_are_upper_edges() {
        let mut rates = Rates::default();
        assert_eq!(rates.percentile(0.98), None);
        (0..98).for_each(|_| rates.add(0.001));
        (0..2).for_each(|_| rates.add(0.5));
        let p98 = rates.percentile(0.98).unwrap();
        assert!((0.001..0.00102).contains(&p98), "{p98}");
        assert_eq!((rates.percentile(0.99), rates.percentile(0.0).map(|edge| edge < 0.0011)), (Some(0.5), Some(true)));
        for (rate, expected) in [(0.0, 2f64.powi(-20)), (f64::NAN, 2f64.powi(-20)), (1.0, 1.0), (1.01, f64::INFINITY)] {
            let mut one = Rates::default();
            one.add(rate);
            assert_eq!(one.percentile(0.98), Some(expected), "{rate}");
        }
    }
}
