//! What the agent itself costs.

use serde::Serialize;
use units::Bytes;

/// Resources that the agent used since it started, and how well it kept its deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// CPU time of the agent, its children, and the kernel threads that run for it (kdamonds).
    pub cpu_seconds: f64,
    /// Of it, the part of steps that moved memory of jobs out, with what the kernel did in their context: compression above all. Jobs
    /// that have ended are included.
    pub offload_cpu_seconds: f64,
    /// Resident memory of the agent.
    pub rss_bytes: Bytes,
    /// Finished scans.
    pub scans: u64,
    /// Scans that started more than half a period late, or took longer than a period.
    pub late_scans: u64,
    /// Periods of policies, and checks of the guard, that began more than half a period late.
    pub deadlines_missed: u64,
    /// Duration of the last scan.
    pub scan_seconds: f64,
    /// CPU time of all scans, including that of kdamonds between them.
    pub scan_cpu_seconds: f64,
    /// Of it, the part of the trackers: measuring ages. The rest is finding jobs and their processes, and reading their counters.
    pub ages_cpu_seconds: f64,
    /// Bytes whose ages all scans covered.
    pub scanned_bytes: Bytes,
    /// Idle huge pages that were split so that the ages of their parts are known.
    pub ages_splits: u64,
    /// Time during which access rates were sampled for policy `slowdown`.
    pub rates_seconds: f64,
    /// CPU time of that sampling, including kernel threads.
    pub rates_cpu_seconds: f64,
    /// The same as a share of one CPU over `rates_seconds`.
    pub rates_cpu_ratio: f64,
    /// Time spent splitting and collapsing huge pages: an upper bound of how long a job waited for these pages.
    pub rates_held_seconds: f64,
    /// The same as a share of `rates_seconds`.
    pub rates_held_ratio: f64,
    /// Huge pages that were split so that their parts could be sampled.
    pub rates_splits: u64,
    /// Huge pages that were collapsed after that.
    pub rates_collapses: u64,
}
