//! `thermocline pool generate`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use placement::Strategy;
use serde::Serialize;
use units::Bytes;
use vmtrace::Trace;
use vmtrace::generate::fit::{NOT_SHOWN, Row};
use vmtrace::generate::{self, Settings};
use vmtrace::stranding::{Demand, Shape, stranding};

use super::arguments::Generate;
use super::stranding::mebibytes;
use crate::options::Format;
use crate::output::print;
use crate::progress::progress;
use crate::table::Table;

/// Servers for the fit of stranding; their DRAM per core is the mean memory that the trace rents per core.
const SERVER_CORES: u32 = 48;
const PEAK_FILL: f64 = 0.95;

#[derive(Debug, Serialize)]
struct Made<'a> {
    generated: bool,
    trace: &'a Path,
    #[serde(flatten)]
    settings: Settings,
    written_vms: u64,
    bytes: Bytes,
    stranding_dram_per_core_bytes: Bytes,
    fit: Vec<Row>,
}

/// Generates a trace, and prints how well it fits the published figures.
pub(super) fn generate(format: Format, arguments: &Generate) -> Result<()> {
    let Generate { vms, clusters, days, seed, out } = arguments;
    let settings = Settings { seed: *seed, vms: *vms, clusters: *clusters, days: *days };
    // The trace is written once and read twice for (Pond figure 2).
    let progress = progress("VMs", vms.saturating_mul(3));
    let (written, tally) = generate::generate(&settings, out, &mut || progress.inc(1))?;
    let trace = Trace::open(out)?;
    let demand = Demand::of(&trace, &mut || progress.inc(1))?;
    let dram_per_core_bytes = mebibytes(demand.bytes_per_core());
    let shape = Shape { cores: SERVER_CORES, dram_per_core_bytes, peak_fill: PEAK_FILL, strategy: Strategy::BestFit };
    let stranded = stranding(&trace, &demand, shape, &mut || progress.inc(1))?;
    drop(progress);
    let made = Made {
        generated: true,
        trace: out,
        settings,
        written_vms: written.vms,
        bytes: written.bytes,
        stranding_dram_per_core_bytes: dram_per_core_bytes,
        fit: tally.rows(Some(&stranded)),
    };
    print(format, &made, || text(&made))
}

fn text(made: &Made<'_>) -> String {
    let Made { trace, written_vms, bytes, fit, .. } = made;
    let mut text = format!("{}: {written_vms} generated VMs, {bytes}; nothing in it was measured\n", trace.display());
    let dram = made.stranding_dram_per_core_bytes;
    let _ = writeln!(text, "stranding on servers of {SERVER_CORES} cores with {dram} of DRAM per core, see `pool stranding`");
    let mut table = Table::new(&["<id", "<published figure", "published", "generated", "ratio"]);
    for row in fit {
        let (low, high) = row.published;
        let published = if (low - high).abs() < 1e-9 { format!("{low:.3}") } else { format!("{low:.3}-{high:.3}") };
        table.row(&[&row.id, &row.what, &published, &format!("{:.4}", row.generated), &format!("{:.2}", row.ratio)]);
    }
    let _ = write!(text, "\n{table}\nnot shown:\n");
    for (ids, why) in NOT_SHOWN {
        let _ = writeln!(text, "  {ids}: {why}");
    }
    text
}
