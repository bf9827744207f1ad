//! The harness: interleaved runs, medians, and the report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use kernel::process::own_cpu_time;
use serde::Serialize;

use crate::machine::Machine;

/// How often everything is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Runs of each benchmark.
    pub(crate) runs: u32,
}

/// The shortest run: processor time is counted in microseconds, and a run must be long against that.
const RUN_MIN: Duration = Duration::from_millis(20);

/// What is measured: does its work once and returns how many units that was.
pub(crate) type Work<'a> = &'a mut dyn FnMut() -> u64;

/// One benchmark.
pub(crate) struct Bench<'a> {
    /// Its key in the report.
    pub(crate) name: &'static str,
    /// What `work` counts; the figure is so many per second.
    pub(crate) unit: &'static str,
    /// The code in question.
    pub(crate) work: Work<'a>,
    /// The least that any code must do over the same data, counted in the same unit.
    pub(crate) limit: Option<Work<'a>>,
    /// The rate below which the project's own requirement is missed.
    pub(crate) required: Option<f64>,
}

/// One figure of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// The median rate.
    pub(crate) median: f64,
    /// Its unit.
    pub(crate) unit: String,
    /// The median of work by limit, of runs one after the other; `null` where there is no limit.
    pub(crate) ratio_to_limit: Option<f64>,
    /// The slowest run.
    pub(crate) lowest: f64,
    /// The fastest run.
    pub(crate) highest: f64,
    /// The rate that the project requires, if it requires one.
    pub(crate) required: Option<f64>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    results: BTreeMap<&'static str, Figure>,
}

impl Report {
    /// A report without figures.
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, results: BTreeMap::new() }
    }

    /// Measures one benchmark and notes its figure.
    ///
    /// # Errors
    /// When the kernel does not tell the processor time.
    pub(crate) fn measure(&mut self, effort: Effort, bench: Bench<'_>) -> Result<()> {
        eprintln!("measuring {}", bench.name);
        let Bench { name, unit, work, mut limit, required } = bench;
        let mut rates = Vec::new();
        let mut ratios = Vec::new();
        for run in 0..=effort.runs {
            let rate = rate(work)?;
            let limit_rate = limit.as_mut().map(|limit| self::rate(limit)).transpose()?;
            // The first run of each warms caches and page tables.
            if run > 0 {
                rates.push(rate);
                ratios.extend(limit_rate.map(|limit| rate / limit));
            }
        }
        rates.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        let figure = Figure {
            median: median(&rates).unwrap_or_default(),
            unit: format!("{unit} per second"),
            ratio_to_limit: median(&ratios),
            lowest: rates.first().copied().unwrap_or_default(),
            highest: rates.last().copied().unwrap_or_default(),
            required,
        };
        self.results.insert(name, figure);
        Ok(())
    }

    /// The figures for people.
    pub(crate) fn table(&self) -> String {
        let Machine { cpu, cores, kernel } = &self.machine;
        let mut text = format!("{}, {cores} cores, Linux {kernel}\n", cpu.as_deref().unwrap_or("unnamed processor"));
        let _ = writeln!(text, "{:<34} {:>12} {:<22} {:>9} {:>21}", "benchmark", "median", "unit", "of limit", "lowest to highest");
        for (name, figure) in &self.results {
            let ratio = figure.ratio_to_limit.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let range = format!("{} to {}", short(figure.lowest), short(figure.highest));
            let _ = writeln!(text, "{name:<34} {:>12} {:<22} {ratio:>9} {range:>21}", short(figure.median), figure.unit);
        }
        text
    }

    /// One line for each figure below its requirement.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed = self.results.iter().filter_map(|(name, figure)| {
            let required = figure.required.filter(|&required| figure.median < required)?;
            Some(format!("{name}: {} {} is below the required {}", short(figure.median), figure.unit, short(required)))
        });
        missed.collect()
    }
}

/// The median rates of two works, run in turn, and the median of the first by the second.
///
/// # Errors
/// When the kernel does not tell the processor time.
pub(crate) fn compare(effort: Effort, first: Work<'_>, second: Work<'_>) -> Result<(f64, f64, f64)> {
    let (mut firsts, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=effort.runs {
        let (a, b) = (rate(first)?, rate(second)?);
        // The first run of each warms caches and page tables.
        if run > 0 {
            firsts.push(a);
            seconds.push(b);
            ratios.push(a / b);
        }
    }
    let middle = |mut list: Vec<f64>| {
        list.sort_by(f64::total_cmp);
        median(&list).unwrap_or_default()
    };
    Ok((middle(firsts), middle(seconds), middle(ratios)))
}

/// The median rate of a work.
///
/// # Errors
/// When the kernel does not tell the processor time.
pub(crate) fn median_rate(effort: Effort, work: Work<'_>) -> Result<f64> {
    let mut rates = (0..effort.runs).map(|_| rate(work)).collect::<Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(median(&rates).unwrap_or_default())
}

/// Units per second of processor time, over at least [`RUN_MIN`] of it.
fn rate(work: Work<'_>) -> Result<f64> {
    let start = own_cpu_time()?;
    let mut units = 0u64;
    loop {
        units += work();
        let spent = own_cpu_time()?.saturating_sub(start);
        if spent >= RUN_MIN {
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            return Ok(units as f64 / spent.as_secs_f64());
        }
    }
}

/// The middle of sorted values, the lower of two.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// Three digits and a decimal prefix: `2.41 G`.
fn short(value: f64) -> String {
    let (scaled, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    format!("{scaled:.2} {prefix}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_and_misses_are_told() {
        let machine = Machine { cpu: None, cores: 1, kernel: "6.12".to_owned() };
        let mut report = Report::new(machine);
        let spin = || (0..10_000).map(|n| std::hint::black_box(u64::from(n >= 0))).sum();
        let (mut work, mut limit) = (spin, spin);
        let bench = Bench { name: "spin", unit: "steps", work: &mut work, limit: Some(&mut limit), required: Some(f64::INFINITY) };
        report.measure(Effort { runs: 3 }, bench).unwrap();
        let figure = &report.results["spin"];
        assert!(figure.lowest <= figure.median && figure.median <= figure.highest && figure.lowest > 0.0);
        assert!(figure.ratio_to_limit.is_some_and(|ratio| ratio > 0.1 && ratio < 10.0), "{figure:?}");
        assert_eq!(report.missed().len(), 1);
    }

    #[test]
    fn numbers_are_short_and_medians_in_the_middle() {
        for (value, text) in [(0.5, "0.50"), (1500.0, "1.50 k"), (2.5e6, "2.50 M"), (1.25e9, "1.25 G")] {
            assert_eq!(short(value), text);
        }
        for (sorted, want) in [(&[][..], None), (&[1.0], Some(1.0)), (&[1.0, 2.0], Some(1.0)), (&[1.0, 2.0, 9.0], Some(2.0))] {
            assert_eq!(median(sorted), want);
        }
    }
}
