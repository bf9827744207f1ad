//! `thermocline pool import`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use vmtrace::Trace;
use vmtrace::import::lifetimes::Lifetimes;
use vmtrace::import::{self, Options};

use super::arguments::Import;
use super::lives::collect;
use crate::options::Format;
use crate::output::print;
use crate::progress::progress;

/// Imports a trace, and prints the number of VMs and the invalid rows.
pub(super) fn import(format: Format, arguments: &Import) -> Result<ExitCode> {
    let out = arguments.out.canonicalize().ok();
    let sources = arguments.from.iter().chain(&arguments.lifetimes);
    if let Some(source) = sources.into_iter().find(|source| out.is_some() && source.canonicalize().ok() == out) {
        bail!("--out is {}, which is also an input and would be replaced; name another file", source.display());
    }
    let lifetimes = arguments.lifetimes.as_deref().map(|path| Ok::<_, anyhow::Error>(Lifetimes::of(&Trace::open(path)?)?)).transpose()?;
    let options =
        Options { lifetimes, seed: arguments.seed, machine_cores: arguments.machine_cores, machine_memory_bytes: arguments.machine_memory };
    let progress = progress("% of a source read", 100);
    let collected = arguments.store.as_deref().map(collect).transpose()?.unwrap_or_default();
    let from: Vec<PathBuf> = arguments.from.iter().cloned().chain(collected.files.iter().map(|copy| copy.path().to_owned())).collect();
    for skipped in &collected.skipped {
        log::warn!("skipped {skipped}");
    }
    let report = import::import(&from, &arguments.out, &options, &mut |done, of| {
        progress.set_position(done.saturating_mul(100) / of.max(1));
    })?;
    drop(progress);
    print(format, &report, || {
        let import::Report { rows, vms, still_running, lifetimes_drawn, bad_rows, bad_rows_total, bytes, .. } = &report;
        let out = arguments.out.display();
        let mut text = format!("{out}: {vms} VMs of {rows} rows ({}), {}\n", report.formats.join(", "), bytes);
        let _ = writeln!(text, "{still_running} have no departure: still running at the end of the trace, or unknown");
        if *lifetimes_drawn > 0 {
            let _ = writeln!(text, "{lifetimes_drawn} lifetimes were drawn");
        }
        if *bad_rows_total > 0 {
            let _ = writeln!(text, "{bad_rows_total} rows are invalid; the first:");
            for bad in bad_rows {
                let _ = writeln!(text, "  {bad}");
            }
        }
        text
    })?;
    let is_clean = report.bad_rows_total == 0 && collected.skipped.is_empty();
    Ok(if arguments.strict && !is_clean { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
