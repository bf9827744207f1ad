//! What the tiering controller knows of one job.

use config::{Config, Policy, Tier as Configured};
use policy::incompressible::{self, Stored};
use policy::tiering::row::Accounting;
use policy::tiering::{Choice, Tier, Why};
use serde::Serialize;
use trackers::compressibility::{Family, Measurement};
use units::{Bytes, Millis, RatioPpm};

use super::decide::{OperatorTier, TieringStart, tier_of};
use super::endurance::WriteBudget;
use super::refused::Refused;
use crate::discover::Treatment;

/// Where a job's swap-backed memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// The choice.
    pub choice: Choice,
    /// Whether the operator made it.
    pub by_operator: bool,
}

impl Placed {
    /// The tier, if the choice has one.
    #[must_use]
    pub fn tier(&self) -> Option<Tier> {
        tier_of(self.choice)
    }
}

/// The tiering controller of one job. All other controllers of the job consult it, so it is part of the job and not one of
/// its slots.
#[derive(Debug)]
pub struct Tiering {
    /// Parameters and state as of the last decision.
    start: TieringStart,
    /// The last choice.
    pub placed: Option<Placed>,
    /// What zswap stored of the job's offloads since the last decision.
    pub stored: Stored,
    /// When its pages were last sampled, in milliseconds since boot.
    pub sampled_at_ms: Option<Millis>,
    /// When a sample was last tried, whether a page could be read or not.
    pub tried_at_ms: Option<Millis>,
    /// Tries in a row in which no page could be read.
    pub failures: u32,
    /// The last sample, by family of compressors.
    pub measured: Option<Measurement>,
    /// The job's write budget.
    pub writes: WriteBudget,
    /// Bytes that the job wrote to swap devices since the agent started.
    pub written: Bytes,
    /// Of these, bytes that are not charged to `writes` yet.
    pub uncharged: Bytes,
    /// Whether the kernel takes page cache in place of its swap-backed memory.
    pub refused: Refused,
    /// How long a job is observed before its pages are sampled, in milliseconds.
    pub warmup_ms: Millis,
}

impl Tiering {
    /// The controller of a new job.
    #[must_use]
    pub fn new(config: &Config, treatment: &Treatment, now_ms: Millis) -> Self {
        let writes = WriteBudget::new(config.swap.job_endurance(), None, now_ms);
        let start = TieringStart {
            operator: operator(treatment.tier),
            params: config.tiering_for(treatment.class),
            incompressible: config.incompressible.params(),
            state: incompressible::State::default(),
            writes: writes.start(),
            compressed: None,
            tier: None,
        };
        Self {
            start,
            placed: None,
            stored: Stored::default(),
            sampled_at_ms: None,
            tried_at_ms: None,
            failures: 0,
            measured: None,
            writes,
            written: Bytes::ZERO,
            uncharged: Bytes::ZERO,
            refused: Refused::default(),
            warmup_ms: warmup_ms(config, treatment),
        }
    }

    /// Replaces the parameters. The caller then records a new start.
    pub fn configure(&mut self, config: &Config, treatment: &Treatment) {
        self.writes.configure(config.swap.job_endurance());
        self.start.params = config.tiering_for(treatment.class);
        self.start.incompressible = config.incompressible.params();
        self.start.writes = self.writes.start();
        self.warmup_ms = warmup_ms(config, treatment);
    }

    /// Parameters and state as of the last decision.
    #[must_use]
    pub fn start(&self) -> TieringStart {
        self.start
    }

    /// The same, to decide with.
    pub(super) fn start_mut(&mut self) -> &mut TieringStart {
        &mut self.start
    }

    /// State of policy `incompressible`, for the history.
    #[must_use]
    pub fn incompressible(&self) -> incompressible::State {
        self.start.state
    }

    /// Takes over the state that an earlier agent stored.
    pub fn restore(&mut self, incompressible: incompressible::State, writes: Option<policy::endurance::Bucket>) {
        self.start.state = incompressible;
        if let Some(bucket) = writes {
            self.writes.restore(bucket);
        }
        self.start.writes = self.writes.start();
    }

    /// The tier that the job has.
    #[must_use]
    pub fn tier(&self) -> Option<Tier> {
        self.placed.and_then(|placed| placed.tier())
    }

    /// Compressed share of the job's cold pages, by the last sample.
    #[must_use]
    pub fn compressed(&self) -> Option<RatioPpm> {
        self.start.compressed
    }

    /// What compressed copies of the job's cold pages would occupy as a share of their size, by the last sample; nothing if they would go
    /// to a device, and everything if they do not compress and there is none. `None` before the first sample.
    #[must_use]
    pub fn would_occupy(&self, family: Family, device: bool) -> Option<RatioPpm> {
        let to_device = |tier: Tier| tier.accounting == Accounting::SwapCost;
        if self.tier().map_or(self.start.operator == Some(OperatorTier::Swap), to_device) {
            return Some(RatioPpm(0));
        }
        let Some(measured) = self.measured else { return self.compressed() };
        let (params, sample) = (&self.start.incompressible, Some(measured.sample));
        let verdict = incompressible::step(params, incompressible::State::default(), Millis(0), 1, Stored::default(), sample).1;
        Some(match verdict {
            incompressible::Verdict::Compressible => measured.of(family).ratio,
            _ if device => RatioPpm(0),
            _ => RatioPpm::ONE,
        })
    }

    /// The tier's name, and why it was chosen, in words.
    #[must_use]
    pub fn words(&self) -> (Option<String>, &'static str) {
        words(self.placed)
    }
}

/// When a job's first sample is due: before anything of it is offloaded. Under `auto`, whichever of its two parts begins first.
fn warmup_ms(config: &Config, treatment: &Treatment) -> Millis {
    let by_age = config.cold_age_for(treatment.class).params().warmup_ms;
    let by_pressure = config.pressure_for(treatment.class).warmup_ms;
    match treatment.policy {
        Policy::Pressure => by_pressure,
        Policy::Auto => by_age.min(by_pressure),
        _ => by_age,
    }
}

/// The operator's tier, if the configuration names one.
fn operator(configured: Configured) -> Option<OperatorTier> {
    match configured {
        Configured::Auto => None,
        Configured::Zswap => Some(OperatorTier::Zswap),
        Configured::Swap => Some(OperatorTier::Swap),
        Configured::Both => Some(OperatorTier::Both),
    }
}

/// A tier's name, and why it was chosen, in words.
pub(crate) fn words(placed: Option<Placed>) -> (Option<String>, &'static str) {
    let Some(placed) = placed else { return (None, "not chosen yet") };
    let name = placed.tier().map(|tier| tier.to_string());
    let (Choice::Use { why, .. } | Choice::Hold { why }) = placed.choice;
    let why = match why {
        Why::Compresses => "its cold pages compress well",
        Why::SavesMore => "its cold pages compress, and what its stall target permits saves more on the device",
        Why::DoesNotCompress => "its cold pages do not compress well",
        Why::WarmerCompressedColderWritten => "its cold pages compress, and zswap writes the oldest to the device when its pool is full",
        Why::OnlyTier if placed.by_operator => "chosen by the operator",
        Why::OnlyTier => "there is no other tier",
        Why::TooSlow => "the other tier is slower than its class accepts",
        Why::WritesSpent => "the device's write budget is spent for now",
        Why::NoShrinker => "chosen by the operator; zswap's shrinker is off, so nothing is written until the pool is full (zswap.shrinker)",
        Why::NotSampled => "its pages, or the tier's latency, have not been measured yet",
        Why::NoDevice => "there is no swap device to write to (see `thermocline doctor`)",
        Why::NoTier => "there is no far memory for it (see `thermocline doctor`)",
    };
    (name, why)
}
