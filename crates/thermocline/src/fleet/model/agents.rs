//! What agents would have done under the configured parameters, as `--agents` prints it.

use std::num::NonZero;

use anyhow::Result;
use config::Config;
use model::agents::Agents;
use model::fleet::Source;
use model::tally::ratio;
use serde::Serialize;
use trace::Basis;

/// The configured parameters through the agents' own controller, with parts of the cold pages.
#[derive(Debug, Serialize)]
pub(crate) struct AsAgents {
    /// Far memory, mean over the jobs' time together.
    pub(crate) stored_bytes: f64,
    /// The share of it that is a part of the cold pages: an order of magnitude only.
    pub(crate) parts_ratio: f64,
    /// DRAM that its compressed copies take.
    pub(crate) pool_bytes: f64,
    pub(crate) coverage_ratio: f64,
    /// Entries with far memory on.
    pub(crate) entries_on_ratio: f64,
    /// Of these, entries whose promotions exceed the objective.
    pub(crate) entries_over_ratio: f64,
    /// Promotions per minute as a share of the working set, over the entries with far memory; `null` without any.
    pub(crate) rate_ratio_per_min: Option<f64>,
    /// Where it lies in 95 % of further traces as long as this; `null` for too few entries.
    pub(crate) rate_interval_ratio_per_min: Option<[f64; 2]>,
}

/// Replays a source as agents with the configured parameters would have acted.
pub(super) fn replayed<S: Source<Error: std::error::Error + Sync + 'static>>(
    config: &Config,
    source: &S,
    basis: &Basis,
    threads: NonZero<usize>,
) -> Result<Agents> {
    let params = config.cold_age.params();
    super::read(source, &model::fleet::all(source), threads, || Agents::new(params, basis.thresholds, basis.scan_period_ms))
}

impl AsAgents {
    pub(super) fn new(agents: &Agents, basis: &Basis, span_ms: u64) -> Self {
        let mean = |page_ms: u128| ratio(page_ms * u128::from(basis.page_bytes.0), u128::from(span_ms));
        Self {
            stored_bytes: mean(agents.far_page_ms),
            parts_ratio: ratio(agents.part_page_ms, agents.far_page_ms),
            pool_bytes: mean(agents.pool_page_ms),
            coverage_ratio: ratio(agents.far_page_ms, agents.cold_page_ms),
            entries_on_ratio: ratio(agents.entries_on.into(), agents.entries.into()),
            entries_over_ratio: ratio(agents.entries_over.into(), agents.entries_on.into()),
            rate_ratio_per_min: agents.rate(),
            rate_interval_ratio_per_min: agents.rate_interval(),
        }
    }
}
