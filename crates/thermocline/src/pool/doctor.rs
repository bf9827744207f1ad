//! `thermocline pool doctor`: checks whether this machine has memory for a pool, and what to do next.

use std::fmt::Write as _;
use std::process::ExitCode;

use advise::doctor::Check;
use anyhow::Result;
use kernel::Roots;
use serde::Serialize;

mod machine;
mod stages;

use machine::Machine;

use crate::exits;
use crate::options::Format;
use crate::output::print;

/// The result of all checks.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// Whether a node without cores is online, which can hold a pool's slices.
    able: bool,
    #[serde(flatten)]
    machine: &'a Machine,
    checks: Vec<Check>,
    /// The commands to run now, in order; empty if nothing is left to do, or no command helps.
    next: Vec<String>,
}

/// Checks the machine. Changes nothing.
pub(super) fn doctor(format: Format) -> Result<ExitCode> {
    let machine = Machine::read(&Roots::host())?;
    let report = report(&machine);
    print(format, &report, || text(&report))?;
    Ok(if report.able { ExitCode::SUCCESS } else { exits::negative() })
}

fn report(machine: &Machine) -> Report<'_> {
    let found = stages::all(machine);
    let next = found.iter().find(|found| !found.commands.is_empty()).map(|found| found.commands.clone()).unwrap_or_default();
    Report { able: !machine.far_nodes.is_empty(), machine, checks: found.into_iter().map(|found| found.check).collect(), next }
}

fn text(report: &Report<'_>) -> String {
    let mut text = format!("kernel {}\n", report.machine.kernel);
    report.checks.iter().for_each(|check| check.write_to(&mut text));
    let verdict = if report.able { "this machine has pool memory" } else { "this machine has no pool memory" };
    let _ = writeln!(text, "{verdict}");
    if !report.next.is_empty() {
        let _ = writeln!(text, "next, as root:\n  {}", report.next.join("\n  "));
    }
    text
}

#[cfg(test)]
mod tests;
