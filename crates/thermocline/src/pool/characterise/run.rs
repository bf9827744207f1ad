//! Runs of the workload.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Returns the command with its output redirected to standard error, so that it does not mix with the report.
pub(super) fn command(words: &[OsString]) -> Result<Command> {
    let [program, rest @ ..] = words else { bail!("name the command to run") };
    let mut command = Command::new(program);
    let output = std::io::stderr().as_fd().try_clone_to_owned().context("cannot redirect the command's output")?;
    command.args(rest).stdin(Stdio::null()).stdout(output);
    Ok(command)
}

/// Returns the wall time of a command, in seconds.
pub(super) fn timed(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    let status = command.status().with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let seconds = began.elapsed().as_secs_f64();
    succeeded(status)?;
    Ok(seconds)
}

/// Refuses a command that failed: it has not done its work, so its time is meaningless.
fn succeeded(status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("the command failed ({status}), so its time is not valid; nothing was written");
    }
    Ok(())
}
