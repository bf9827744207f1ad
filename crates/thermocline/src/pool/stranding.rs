//! `thermocline pool stranding`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use placement::Strategy;
use serde::Serialize;
use units::Bytes;
use vmtrace::Trace;
use vmtrace::stranding::{self, Demand, Shape};

use super::arguments::Stranding;
use crate::options::Format;
use crate::output::print;
use crate::progress::progress;
use crate::table::Table;

/// The output of the command.
#[derive(Debug, Serialize)]
struct Report<'a> {
    trace: &'a Path,
    origin: &'a str,
    generated: bool,
    vms: u64,
    /// Mean memory that the trace rents per core, over time.
    rented_bytes_per_core: f64,
    most_bytes_per_core: Bytes,
    results: Vec<stranding::Stranding>,
}

/// The default amounts of DRAM per core, as multiples of the memory that the trace rents per core.
const SWEEP: [f64; 4] = [1.0, 1.1, 1.2, 1.4];

/// Packs a trace onto servers, and prints the stranded DRAM for each amount of DRAM per core.
pub(super) fn stranding(format: Format, arguments: &Stranding) -> Result<()> {
    let trace = Trace::open(&arguments.trace)?;
    let ratios = arguments.dram_per_core.len();
    let passes = 1 + if ratios == 0 { SWEEP.len() } else { ratios };
    let progress = progress("VMs", trace.len().saturating_mul(passes as u64));
    let demand = Demand::of(&trace, &mut || progress.inc(1))?;
    let mut ratios = arguments.dram_per_core.clone();
    if ratios.is_empty() {
        ratios = SWEEP.iter().map(|factor| mebibytes(demand.bytes_per_core() * factor)).collect();
    }
    let strategy = Strategy::named(&arguments.placement, arguments.seed)?;
    let mut results = Vec::new();
    for dram_per_core_bytes in ratios {
        let shape =
            Shape { cores: arguments.server_cores, dram_per_core_bytes, peak_fill: f64::from(arguments.peak_fill.0) / 1e6, strategy };
        results.push(stranding::stranding(&trace, &demand, shape, &mut || progress.inc(1))?);
    }
    drop(progress);
    let about = trace.about();
    let report = Report {
        trace: &arguments.trace,
        origin: &about.origin,
        generated: about.generated,
        vms: demand.vms,
        rented_bytes_per_core: demand.bytes_per_core(),
        most_bytes_per_core: demand.most_bytes_per_core,
        results,
    };
    print(format, &report, || text(&report))
}

/// Rounds bytes up to whole MiB, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
pub(super) fn mebibytes(bytes: f64) -> Bytes {
    Bytes::mib((bytes / f64::from(1 << 20)).ceil().clamp(1.0, 1e9) as u64)
}

fn text(report: &Report<'_>) -> String {
    let mut text = String::new();
    if report.generated {
        text += "a generated trace: nothing in it was measured\n";
    }
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let gib = |bytes: Bytes| bytes.0 as f64 / f64::from(1 << 30);
    let rented = report.rented_bytes_per_core / f64::from(1 << 30);
    let most = gib(report.most_bytes_per_core);
    let _ = writeln!(text, "{} VMs, which rent {rented:.2} GiB per core on average and at most {most:.2} GiB", report.vms);
    for result in &report.results {
        let stranding::Stranding { shape, clusters, servers, refused_for_cores, refused_for_memory, samples, bins } = result;
        let (per_core, cores) = (gib(shape.dram_per_core_bytes), shape.cores);
        let _ = writeln!(
            text,
            "\n{per_core:.2} GiB of DRAM per core: {clusters} clusters, {servers} servers of {cores} cores, {samples} hourly samples"
        );
        let _ = writeln!(text, "{refused_for_cores} VMs refused for lack of cores, {refused_for_memory} for lack of DRAM");
        let mut table = Table::new(&["cores scheduled", "samples", "p5", "median", "p95", "maximum"]);
        for bin in bins {
            let percent = |share: f64| format!("{:.1}%", share * 100.0);
            let scheduled = format!("{:.0}%", bin.scheduled_ratio * 100.0);
            let [p5, median, p95, most] = [bin.stranded_p5, bin.stranded_median, bin.stranded_p95, bin.stranded_most].map(percent);
            table.row(&[&scheduled, &bin.samples, &p5, &median, &p95, &most]);
        }
        text += &table.to_string();
    }
    text
}
