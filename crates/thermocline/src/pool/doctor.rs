//! `thermocline pool doctor`: whether this machine has memory that a pool can be made of, and what is to be done next.

use std::fmt::Write as _;
use std::process::ExitCode;

use advise::doctor::Check;
use anyhow::Result;
use kernel::Roots;
use serde::Serialize;

mod machine;
mod stages;

use machine::Machine;

use crate::options::Format;
use crate::output::print;

/// Everything that was looked at.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// A node without cores is online, so that a pool's slices can lie there.
    able: bool,
    #[serde(flatten)]
    machine: &'a Machine,
    checks: Vec<Check>,
    /// Commands to be given now, in their order; none where there is nothing left to do, or nothing that a command does.
    next: Vec<String>,
}

/// Looks, and changes nothing.
pub(super) fn doctor(format: Format) -> Result<ExitCode> {
    let machine = Machine::look(&Roots::host())?;
    let report = report(&machine);
    print(format, &report, || text(&report))?;
    Ok(if report.able { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn report(machine: &Machine) -> Report<'_> {
    let found = stages::all(machine);
    let next = found.iter().find(|found| !found.commands.is_empty()).map(|found| found.commands.clone()).unwrap_or_default();
    Report { able: !machine.far_nodes.is_empty(), machine, checks: found.into_iter().map(|found| found.check).collect(), next }
}

fn text(report: &Report<'_>) -> String {
    let mut text = format!("kernel {}\n", report.machine.kernel);
    report.checks.iter().for_each(|check| check.write_to(&mut text));
    let verdict = if report.able { "this machine has pool memory" } else { "this machine has no pool memory as it is" };
    let _ = writeln!(text, "{verdict}");
    if !report.next.is_empty() {
        let _ = writeln!(text, "next, as root:\n  {}", report.next.join("\n  "));
    }
    text
}

#[cfg(test)]
mod tests;
