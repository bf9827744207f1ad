//! Emulates slow memory under a program, on a machine without slow memory.
//!
//! A share of the program's anonymous memory is slow, in blocks of 2 MiB. Pages of slow blocks are **parked**: moved to
//! another address within the address space ([`helper`]). An access to a parked page faults, waits for the latency of
//! slow memory, and finds the page restored. The page then stays **open** until a number of other pages have been
//! opened after it: a burst of accesses to a page is charged once, like a TLB miss (Thermostat section 4.2 does the
//! same in a modified kernel).
//!
//! Slow blocks are chosen at random, or by the agent's policy `slowdown` from counted accesses ([`placement`]). Memory
//! may alternate between slow and fast, so that the program's own figures can be compared within one run, whatever else
//! the machine does.
//!
//! # Latencies below that of a fault
//! A fault itself costs several microseconds: the **floor**, measured at each start ([`floor`]). A latency `t` below it
//! is emulated by parking only a share `s` of the slow pages at a time, chosen at random every [`session::DRAW`], and
//! charging `t / s` for an access to one of these. An access to a slow page then costs `s * t / s = t` on average.
//! Throughput is that of slow memory; single latencies are not.
//!
//! # Limitations
//! Only private anonymous memory in whole blocks is slow: no files, no shared memory, no stack of the first thread.
//! Huge pages of slow blocks are split. A partly slow range consists of several mappings, which `mremap(2)` does not
//! accept as one range. Forked children run at full speed, on copies of parked pages. Limits of real memory other than
//! latency (bandwidth, parallel misses of a core) are not emulated: every access to a parked page stalls its thread for
//! the whole latency.
#![deny(missing_docs)]

pub mod chase;
pub mod choice;
mod events;
pub mod floor;
pub mod helper;
mod memory;
mod pending;
pub mod phases;
pub mod placement;
mod ptrace;
pub mod report;
pub mod session;
mod userfaultfd;

use std::io;
use std::path::PathBuf;

/// Reasons why a program cannot be emulated.
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
    /// A kernel interface failed.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The latency is so far below the floor that too few pages could be parked to be representative.
    #[error(
        "a latency of {latency_ns} ns is too far below the {floor_ns} ns of a fault on this machine; use {lowest_ns} ns or more. Slowdowns \
         are proportional to the latency: 3% at 1us corresponds to 30% at 10us"
    )]
    TooFast {
        /// The requested latency.
        latency_ns: u64,
        /// The measured latency of a fault.
        floor_ns: u64,
        /// The lowest possible latency.
        lowest_ns: u64,
    },
    /// The helper was killed, and the program with it.
    #[error("the helper process was killed, so the program could not continue and was killed too; run it again")]
    Killed,
    /// The calibration program failed.
    #[error("the calibration program failed: {0}; run the command again, and report it if it fails again")]
    Calibration(String),
    /// A pipe or a process failed.
    #[error("cannot {op} the program: {source}")]
    Program {
        /// The operation.
        op: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
