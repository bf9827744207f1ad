//! The kinds of jobs of a generated fleet.
//!
//! Names state what a kind is modelled after; none of the values was measured. They were chosen so that the whole fleet
//! fits what is published of fleets ([`crate::generate::fit`] reports how well).

/// A kind of job. All shares are between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Name; the class of its jobs.
    pub name: &'static str,
    /// Share of the jobs.
    pub share: f64,
    /// Median size in pages, and the standard deviation of its natural logarithm.
    pub pages: (f64, f64),
    /// Share of the pages that are not touched all the time, for a typical job.
    pub cool: f64,
    /// Share of those pages that is never touched again.
    pub dead: f64,
    /// Distribution of the others over reuse distances: ratio of each octave to the next shorter one.
    pub octave: f64,
    /// Amplitude of the load over a day: 0.3 is 30 % up and down.
    pub diurnal: f64,
    /// Standard deviation of the logarithm of the load from one entry to the next.
    pub noise: f64,
    /// Sweeps per day that touch part of all memory: a scan, a compaction, a garbage collection.
    pub sweeps_per_day: f64,
    /// Largest share that a sweep touches; shares are spread evenly over the three octaves below it.
    pub sweep_max: f64,
    /// Largest share that is touched at the same time of each night, by all jobs alike.
    pub nightly: f64,
    /// Duration of a phase in hours; the next phase has another load and touches part of the memory.
    pub phase_hours: f64,
    /// Median lifetime in hours, and the standard deviation of its natural logarithm.
    pub life_hours: (f64, f64),
    /// Share of the cold pages that do not compress.
    pub incompressible: f64,
    /// Median compression ratio of the other cold pages.
    pub compression: f64,
}

/// The kinds, the most frequent first. Their shares add up to one.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "service",
        share: 0.30,
        pages: (400_000.0, 1.1),
        cool: 0.56,
        dead: 0.05,
        octave: 0.57,
        diurnal: 0.35,
        noise: 0.38,
        sweeps_per_day: 1.5,
        sweep_max: 0.4,
        nightly: 0.0,
        phase_hours: 60.0,
        life_hours: (120.0, 1.3),
        incompressible: 0.25,
        compression: 3.2,
    },
    Kind {
        name: "batch",
        share: 0.24,
        pages: (500_000.0, 1.2),
        cool: 0.5,
        dead: 0.03,
        octave: 0.53,
        diurnal: 0.05,
        noise: 0.55,
        sweeps_per_day: 2.0,
        sweep_max: 0.5,
        nightly: 0.0,
        phase_hours: 24.0,
        life_hours: (12.0, 1.2),
        incompressible: 0.30,
        compression: 3.0,
    },
    Kind {
        name: "sidecar",
        share: 0.18,
        pages: (1_100_000.0, 0.6),
        cool: 0.73,
        dead: 0.11,
        octave: 0.58,
        diurnal: 0.20,
        noise: 0.3,
        sweeps_per_day: 0.7,
        sweep_max: 0.2,
        nightly: 0.0,
        phase_hours: 120.0,
        life_hours: (200.0, 1.0),
        incompressible: 0.20,
        compression: 3.4,
    },
    Kind {
        name: "storage",
        share: 0.09,
        pages: (1_200_000.0, 0.8),
        cool: 0.63,
        dead: 0.02,
        octave: 0.58,
        diurnal: 0.45,
        noise: 0.5,
        sweeps_per_day: 5.0,
        sweep_max: 0.5,
        nightly: 0.0,
        phase_hours: 60.0,
        life_hours: (200.0, 1.0),
        incompressible: 0.50,
        compression: 2.6,
    },
    Kind {
        name: "feed",
        share: 0.06,
        pages: (900_000.0, 0.6),
        cool: 0.67,
        dead: 0.12,
        octave: 0.67,
        diurnal: 0.30,
        noise: 0.35,
        sweeps_per_day: 1.0,
        sweep_max: 0.3,
        nightly: 0.0,
        phase_hours: 60.0,
        life_hours: (60.0, 1.0),
        incompressible: 0.25,
        compression: 3.0,
    },
    Kind {
        name: "cache",
        share: 0.06,
        pages: (1_200_000.0, 0.6),
        cool: 0.6,
        dead: 0.015,
        octave: 0.64,
        diurnal: 0.40,
        noise: 0.35,
        sweeps_per_day: 0.7,
        sweep_max: 0.2,
        nightly: 0.0,
        phase_hours: 96.0,
        life_hours: (300.0, 1.0),
        incompressible: 0.45,
        compression: 2.4,
    },
    Kind {
        name: "web",
        share: 0.04,
        pages: (900_000.0, 0.5),
        cool: 0.88,
        dead: 0.4,
        octave: 0.82,
        diurnal: 0.40,
        noise: 0.4,
        sweeps_per_day: 2.0,
        sweep_max: 0.4,
        nightly: 0.0,
        phase_hours: 48.0,
        life_hours: (48.0, 0.8),
        incompressible: 0.15,
        compression: 4.0,
    },
    Kind {
        name: "ads",
        share: 0.03,
        pages: (1_000_000.0, 0.6),
        cool: 0.67,
        dead: 0.09,
        octave: 0.67,
        diurnal: 0.30,
        noise: 0.35,
        sweeps_per_day: 1.0,
        sweep_max: 0.3,
        nightly: 0.0,
        phase_hours: 48.0,
        life_hours: (60.0, 1.0),
        incompressible: 0.80,
        compression: 1.35,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_one() {
        let sum: f64 = KINDS.iter().map(|kind| kind.share).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}
