//! `thermocline pool`: memory that machines share. Traces of VMs, what they strand, and the manager of a pool.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use placement::Strategy;
use serde::Serialize;
use units::Bytes;
use vmtrace::Trace;
use vmtrace::import::lifetimes::Lifetimes;
use vmtrace::import::{self, Options};
use vmtrace::stranding::{Demand, Shape, Stranding};

pub(crate) mod arguments;
mod characterise;
mod doctor;
mod generate;
mod host;
mod manager;
mod predict;
mod show;
mod simulate;
mod status;
mod vm;

use crate::options::Format;
use crate::output::print;
use crate::progress::Progress;
use arguments::PoolCommand;

/// Runs a command about pools.
pub(crate) fn run(format: Format, command: &PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::Doctor => return doctor::doctor(format),
        PoolCommand::Import(arguments) => return import(format, arguments),
        PoolCommand::Generate(arguments) => generate::generate(format, arguments)?,
        PoolCommand::Show(arguments) => show::show(&arguments.trace, format)?,
        PoolCommand::Stranding(arguments) => stranding(format, arguments)?,
        PoolCommand::Simulate(arguments) => simulate::simulate(format, arguments)?,
        PoolCommand::Characterise(arguments) => characterise::characterise(format, arguments)?,
        PoolCommand::Predict(arguments) => predict::predict(format, arguments)?,
        PoolCommand::Manager(arguments) => manager::manager(format, arguments)?,
        PoolCommand::Certificates(arguments) => manager::certificates(format, arguments)?,
        PoolCommand::Status(arguments) => status::status(format, arguments)?,
        PoolCommand::Emc(command) => status::emc(format, command)?,
        PoolCommand::Host(arguments) => host::host(format, arguments)?,
        PoolCommand::Vm(arguments) => vm::vm(format, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn import(format: Format, arguments: &arguments::Import) -> Result<ExitCode> {
    let out = arguments.out.canonicalize().ok();
    let sources = arguments.from.iter().chain(&arguments.lifetimes);
    if let Some(source) = sources.into_iter().find(|source| out.is_some() && source.canonicalize().ok() == out) {
        bail!("--out is {}, which is also read: it would be replaced; name another file", source.display());
    }
    let lifetimes = arguments.lifetimes.as_deref().map(|path| Ok::<_, anyhow::Error>(Lifetimes::of(&Trace::open(path)?)?)).transpose()?;
    let options = Options {
        lifetimes,
        seed: arguments.seed,
        machine_cores: arguments.machine_cores,
        machine_memory_bytes: arguments.machine_memory.0,
    };
    let mut progress = Progress::new("rows", 0);
    let report = import::import(&arguments.from, &arguments.out, &options, &mut |done, of| progress.step_at(done, of))?;
    drop(progress);
    print(format, &report, || {
        let import::Report { rows, vms, still_running, lifetimes_drawn, bad_rows, bad_rows_total, bytes, .. } = &report;
        let out = arguments.out.display();
        let mut text = format!("{out}: {vms} VMs of {rows} rows ({}), {}\n", report.formats.join(", "), Bytes(*bytes));
        let _ = writeln!(text, "{still_running} have no departure: they ran on, or nobody knows");
        if *lifetimes_drawn > 0 {
            let _ = writeln!(text, "{lifetimes_drawn} lifetimes were drawn");
        }
        if *bad_rows_total > 0 {
            let _ = writeln!(text, "{bad_rows_total} rows could not be used; the first:");
            for bad in bad_rows {
                let _ = writeln!(text, "  {bad}");
            }
        }
        text
    })?;
    Ok(if arguments.strict && report.bad_rows_total > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What `stranding` tells.
#[derive(Debug, Serialize)]
struct Told<'a> {
    trace: &'a Path,
    origin: &'a str,
    generated: bool,
    vms: u64,
    /// What the trace rents with a core, on average over time.
    rented_bytes_per_core: f64,
    most_bytes_per_core: u64,
    results: Vec<Stranding>,
}

/// Where nothing is asked for: what the trace rents with a core, and more.
const SWEEP: [f64; 4] = [1.0, 1.1, 1.2, 1.4];

fn stranding(format: Format, arguments: &arguments::Stranding) -> Result<()> {
    let trace = Trace::open(&arguments.trace)?;
    let ratios = arguments.dram_per_core.len();
    let passes = 1 + if ratios == 0 { SWEEP.len() } else { ratios };
    let mut progress = Progress::new("VMs", usize::try_from(trace.len()).unwrap_or(usize::MAX).saturating_mul(passes));
    let demand = Demand::of(&trace, &mut || progress.step())?;
    let mut ratios: Vec<u64> = arguments.dram_per_core.iter().map(|bytes| bytes.0).collect();
    if ratios.is_empty() {
        ratios = SWEEP.iter().map(|factor| mebibytes(demand.bytes_per_core() * factor)).collect();
    }
    let strategy = Strategy::named(&arguments.placement, arguments.seed)?;
    let mut results = Vec::new();
    for dram_per_core_bytes in ratios {
        let shape =
            Shape { cores: arguments.server_cores, dram_per_core_bytes, peak_fill: f64::from(arguments.peak_fill.0) / 1e6, strategy };
        results.push(vmtrace::stranding::stranding(&trace, &demand, shape, &mut || progress.step())?);
    }
    drop(progress);
    let about = trace.about();
    let told = Told {
        trace: &arguments.trace,
        origin: &about.origin,
        generated: about.generated,
        vms: demand.vms,
        rented_bytes_per_core: demand.bytes_per_core(),
        most_bytes_per_core: demand.most_bytes_per_core,
        results,
    };
    print(format, &told, || text(&told))
}

/// Bytes in whole MiB, at least one: a size that people can name.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn mebibytes(bytes: f64) -> u64 {
    ((bytes / f64::from(1 << 20)).ceil().clamp(1.0, 1e9) as u64) << 20
}

fn text(told: &Told<'_>) -> String {
    let mut text = String::new();
    if told.generated {
        text += "a generated trace: nothing in it was measured\n";
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let rented = told.rented_bytes_per_core / f64::from(1 << 30);
    let _ = writeln!(text, "{} VMs, which rent {rented:.2} GiB with a core, at most {:.2} GiB", told.vms, gib(told.most_bytes_per_core));
    for result in &told.results {
        let Stranding { shape, clusters, servers, refused_for_cores, refused_for_memory, samples, bins } = result;
        let (per_core, cores) = (gib(shape.dram_per_core_bytes), shape.cores);
        let _ = writeln!(
            text,
            "\n{per_core:.2} GiB of DRAM per core: {clusters} clusters, {servers} servers of {cores} cores, {samples} hourly samples"
        );
        let _ = writeln!(text, "{refused_for_cores} VMs found no free cores, {refused_for_memory} no free DRAM beside them");
        let _ = writeln!(text, "{:>15} {:>8} {:>8} {:>8} {:>8} {:>8}", "cores scheduled", "samples", "p5", "median", "p95", "most");
        for bin in bins {
            let percent = |share: f64| format!("{:.1}%", share * 100.0);
            let scheduled = format!("{:.0}%", bin.scheduled_ratio * 100.0);
            let [p5, median, p95, most] = [bin.stranded_p5, bin.stranded_median, bin.stranded_p95, bin.stranded_most].map(percent);
            let _ = writeln!(text, "{scheduled:>15} {:>8} {p5:>8} {median:>8} {p95:>8} {most:>8}", bin.samples);
        }
    }
    text
}
