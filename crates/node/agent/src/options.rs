//! How one run of the agent differs from its configuration.

/// Options of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether the agent only observes, decides and records, and never acts.
    pub dry_run: bool,
    /// Whether the pages of jobs that are only observed are sampled as well, to estimate what could be saved.
    pub estimate: bool,
    /// Whether the run keeps no journal, no history and no trace.
    pub ephemeral: bool,
}
