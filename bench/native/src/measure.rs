//! The harness: interleaved runs, medians, and the report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use kernel::process::own_cpu_time;
use serde::Serialize;

use crate::machine::Machine;
use crate::scale::Scale;

/// Amount of measuring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Runs of each benchmark.
    pub(crate) runs: u32,
}

/// Minimum length of a run: CPU time has a resolution of microseconds.
const RUN_MIN: Duration = Duration::from_millis(20);

/// Code to be measured: does its work once and returns the number of units.
pub(crate) type Work<'a> = &'a mut dyn FnMut() -> u64;

/// One benchmark.
pub(crate) struct Bench<'a> {
    /// Key in the report.
    pub(crate) name: &'static str,
    /// Unit counted by `work`; the figure is units per second.
    pub(crate) unit: &'static str,
    /// The measured code.
    pub(crate) work: Work<'a>,
    /// Minimum work on the same data, counted in the same unit.
    pub(crate) limit: Option<Work<'a>>,
    /// Minimum rate that the project requires.
    pub(crate) required: Option<f64>,
}

/// One figure of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// Median rate.
    pub(crate) median: f64,
    /// Unit of the rate.
    pub(crate) unit: String,
    /// Median ratio of work to limit in consecutive runs; `null` without a limit.
    pub(crate) ratio_to_limit: Option<f64>,
    /// Slowest run.
    pub(crate) lowest: f64,
    /// Fastest run.
    pub(crate) highest: f64,
    /// Required rate, if there is one.
    pub(crate) required: Option<f64>,
}

/// All figures.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    results: BTreeMap<&'static str, Figure>,
    /// The agent at the size of a server.
    pub(crate) scale: Option<Scale>,
}

impl Report {
    /// Returns a report without figures.
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, results: BTreeMap::new(), scale: None }
    }

    /// Measures one benchmark and adds its figure.
    ///
    /// # Errors
    /// The kernel does not report CPU time.
    pub(crate) fn measure(&mut self, effort: Effort, bench: Bench<'_>) -> Result<()> {
        eprintln!("measuring {}", bench.name);
        let Bench { name, unit, work, mut limit, required } = bench;
        let mut rates = Vec::new();
        let mut ratios = Vec::new();
        for run in 0..=effort.runs {
            let rate = rate(work)?;
            let limit_rate = limit.as_mut().map(|limit| self::rate(limit)).transpose()?;
            // The first run of each warms up caches and page tables.
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

    /// Formats the figures as a text table.
    pub(crate) fn table(&self) -> String {
        let Machine { cpu, cores, kernel } = &self.machine;
        let mut text = format!("{}, {cores} cores, Linux {kernel}\n", cpu.as_deref().unwrap_or("unnamed processor"));
        let _ = writeln!(text, "{:<34} {:>12} {:<22} {:>9} {:>21}", "benchmark", "median", "unit", "of limit", "lowest to highest");
        for (name, figure) in &self.results {
            let ratio = figure.ratio_to_limit.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let range = format!("{} to {}", short(figure.lowest), short(figure.highest));
            let _ = writeln!(text, "{name:<34} {:>12} {:<22} {ratio:>9} {range:>21}", short(figure.median), figure.unit);
        }
        text + &self.scale.as_ref().map(Scale::table).unwrap_or_default()
    }

    /// Returns one line for each figure below its requirement.
    pub(crate) fn missed(&self) -> Vec<String> {
        let missed = self.results.iter().filter_map(|(name, figure)| {
            let required = figure.required.filter(|&required| figure.median < required)?;
            Some(format!("{name}: {} {} is below the required {}", short(figure.median), figure.unit, short(required)))
        });
        missed.chain(self.scale.iter().flat_map(Scale::missed)).collect()
    }
}

/// Returns the median rates of two works measured alternately, and the median ratio of the first to the second.
///
/// # Errors
/// The kernel does not report CPU time.
pub(crate) fn compare(effort: Effort, first: Work<'_>, second: Work<'_>) -> Result<(f64, f64, f64)> {
    let (mut firsts, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=effort.runs {
        let (a, b) = (rate(first)?, rate(second)?);
        // The first run of each warms up caches and page tables.
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

/// Returns the median rate of a work.
///
/// # Errors
/// The kernel does not report CPU time.
pub(crate) fn median_rate(effort: Effort, work: Work<'_>) -> Result<f64> {
    let mut rates = (0..effort.runs).map(|_| rate(work)).collect::<Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(median(&rates).unwrap_or_default())
}

/// Returns units per second of CPU time, over at least [`RUN_MIN`].
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

/// Returns the middle of sorted values, the lower one of two.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// Formats with three digits and a decimal prefix: `2.41 G`.
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
    fn figures_are_medians_and_missed_requirements_are_reported() {
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
    fn numbers_are_shortened_and_medians_are_in_the_middle() {
        for (value, text) in [(0.5, "0.50"), (1500.0, "1.50 k"), (2.5e6, "2.50 M"), (1.25e9, "1.25 G")] {
            assert_eq!(short(value), text);
        }
        for (sorted, expected) in [(&[][..], None), (&[1.0], Some(1.0)), (&[1.0, 2.0], Some(1.0)), (&[1.0, 2.0, 9.0], Some(2.0))] {
            assert_eq!(median(sorted), expected);
        }
    }
}
