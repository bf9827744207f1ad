//! What slow memory would do to a program, without slow memory.
//!
//! A share of the program's anonymous memory is classed slow, in blocks of 2 MiB. Pages of slow blocks are **parked**:
//! moved out of sight within the address space ([`resident`]). An access to a parked page faults, waits until
//! it has cost as much as the slow memory's latency, and finds the page back in its place, where it stays **open** until
//! as many others have been opened after it: a page is charged once for a burst of accesses, like one that misses in
//! the TLB (Thermostat, "Emulating slow memory", does the same in a modified kernel).
//!
//! Which blocks are slow is left to chance, or to the agent's policy `slowdown` by the accesses that are counted
//! ([`placement`]). And the memory may be slow by turns, so that the program's own figures with and without can be compared
//! within one run, whatever else the machine does.
//!
//! # Latencies below that of a fault
//! A fault costs several microseconds by itself: the **floor**, measured at each start ([`floor`]). Slow memory of a
//! latency `t` below it is emulated by parking only a share `s` of the slow pages at a time, drawn anew by chance every
//! [`session::DRAW`], and charging `t / s` for an access to one of those. An access to a slow page then costs `s * t / s
//! = t` on average. Throughput is that of slow memory; single latencies are not.
//!
//! # What it is not
//! Only private anonymous memory in whole blocks is slowed: no files, no shared memory, no stacks of the first thread.
//! Huge pages of slow blocks are split. A range that is partly slow is several mappings, which `mremap(2)` refuses to take
//! as one. Children that the program forks run at full speed, on copies of what was parked. What limits real memory besides latency (bandwidth, overlap of
//! misses within a core) is not emulated: every access to a parked page stalls its thread for the whole latency, as if
//! it depended on it.

mod changes;
pub mod chase;
pub mod choice;
pub mod floor;
mod memory;
pub mod placement;
mod ptrace;
pub mod report;
pub mod resident;
pub mod session;
mod userfaultfd;

use std::io;
use std::path::PathBuf;

/// Why a program could not be emulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The command.
        program: PathBuf,
        /// The error of `execve(2)` or of the preparations before it.
        source: io::Error,
    },
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The latency is so far below the floor that too few pages could be parked to say anything.
    #[error(
        "a latency of {latency_ns} ns is too far below the {floor_ns} ns that a fault costs on this machine; ask for {least_ns} ns or \
         more. A slowdown bound and a latency scale together: what 3% is for 1us, 30% is for 10us"
    )]
    TooFast {
        /// The latency asked for.
        latency_ns: u64,
        /// The measured cost of a fault.
        floor_ns: u64,
        /// The least latency that can be had.
        least_ns: u64,
    },
    /// The resident was killed; the program had to be, too.
    #[error("the part of the emulator inside the program was killed, so that the program could not go on and was killed; run it again")]
    Killed,
    /// The calibration program did not do its part.
    #[error("the calibration program failed: {0}; run the command again, and report it if it fails again")]
    Calibration(String),
    /// A pipe or a process failed.
    #[error("cannot {op} the program: {source}")]
    Program {
        /// What was attempted.
        op: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
