//! What competes: each law at the intensities that give its curve.

use std::fmt;

use config::Class;
use units::RatioPpm;

use crate::law::Law;
use crate::laws::damon::DamonReclaim;
use crate::laws::high::MemoryHigh;
use crate::laws::idle::IdleThreshold;
use crate::laws::katalyst::{KatalystPsi, KatalystRefault};
use crate::laws::marginal::Marginal;
use crate::laws::mglru_script::MglruScript;
use crate::laws::senpai::Senpai;
use crate::laws::thermocline::Thermocline;
use crate::laws::tuning::{Constants, Policy};
use crate::laws::twice_cold::TwiceCold;
use crate::laws::writeback::Writeback;
use crate::trace::Trace;

/// Tracker `sampled`: one in so many pages of a job of about 100 MiB, as the agent's default gives it among sixteen such jobs.
const SAMPLED_ONE_IN: u32 = 25;

/// One law at one intensity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contender {
    /// Evicts generations that are this old, in seconds of a production machine.
    MglruScript(u64),
    /// A pressure target, as a share of time.
    Senpai(f64),
    /// A limit, as a percentage of what the program occupies alone.
    MemoryHigh(u64),
    /// `min_age`, in seconds of a production machine.
    DamonReclaim(u64),
    /// A fixed idle time, in seconds of a production machine.
    IdleThreshold(u64),
    /// A threshold of pressure, as a share of time.
    KatalystPsi(f64),
    /// A target of accuracy: the share of what is reclaimed that does not return soon.
    KatalystRefault(f64),
    /// One of our policies.
    Ours(Ours),
    /// The same with `writeback.enabled = false`.
    WithoutWriteback(Ours),
    /// A candidate: one of our policies, with a fixed second threshold behind zswap.
    TwiceCold(Ours),
    /// A candidate: both tiers, by what each saves for a microsecond lost.
    Marginal(Ours),
}

/// One of our policies at one intensity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The policy.
    pub policy: Policy,
    /// The class, whose constants it has.
    pub class: Class,
    /// A stall target in place of the class's.
    pub stall_target: Option<RatioPpm>,
    /// Whether ages are those of a sample, as on a kernel without idle page tracking.
    pub sampled: bool,
}

/// The guest arena's, and one of 60 minutes.
const AGES_S: [u64; 4] = [3_600, 1_800, 900, 360];
/// The guest arena's, and the target of TMO section 3.3.
const PRESSURES: [f64; 4] = [0.001, 0.005, 0.01, 0.05];
/// Katalyst's default is 99 %.
const ACCURACIES: [f64; 4] = [0.999, 0.99, 0.95, 0.8];
/// The second threshold of the candidate: idle for an hour of a production machine.
const TWICE_COLD_S: u64 = 3_600;
const LIMITS: [u64; 4] = [90, 75, 60, 45];
const CLASSES: [Class; 3] = [Class::Conservative, Class::Standard, Class::Aggressive];
/// Stall targets beyond those of the classes, up to the largest that the agent accepts: without them a policy would be compared at
/// losses that it was never permitted.
const TARGETS: [RatioPpm; 4] = [RatioPpm(10_000), RatioPpm(50_000), RatioPpm(200_000), RatioPpm(500_000)];

impl Ours {
    /// The intensities of a policy: its classes, and stall targets beyond them where it has one.
    #[must_use]
    pub fn intensities(policy: Policy, sampled: bool) -> Vec<Self> {
        let class = |class| Self { policy, class, stall_target: None, sampled };
        let target = |target| Self { stall_target: Some(target), ..class(Class::Standard) };
        let targets = TARGETS.into_iter().filter(|_| policy != Policy::ColdAge);
        CLASSES.into_iter().map(class).chain(targets.map(target)).collect()
    }

    /// Its constants on a trace.
    #[must_use]
    pub fn constants(&self, trace: &Trace) -> Constants {
        let constants = Constants::of(self.class, trace);
        self.stall_target.map_or(constants, |target| constants.with_stall_target(target))
    }

    /// A law with these constants, and what the policy does by default: of `auto`, but not of class `conservative`, what stays in zswap
    /// goes on to the device.
    #[must_use]
    pub fn law(&self, constants: Constants, trace: &Trace, seed: u64) -> Box<dyn Law> {
        let first = self.without_writeback(constants, trace, seed);
        if self.policy == Policy::Auto && self.class != Class::Conservative {
            return Box::new(Writeback::new(first, constants));
        }
        Box::new(first)
    }

    /// The same with `writeback.enabled = false`.
    #[must_use]
    pub fn without_writeback(&self, constants: Constants, trace: &Trace, seed: u64) -> Thermocline {
        let one_in = if self.sampled { SAMPLED_ONE_IN } else { 1 };
        Thermocline::new(self.policy, constants, trace.interval_ms, one_in, seed)
    }
}

impl Contender {
    /// All contenders, with their defaults.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        all.extend(AGES_S.map(Self::MglruScript));
        all.extend(PRESSURES.map(Self::Senpai));
        all.extend(LIMITS.map(Self::MemoryHigh));
        all.extend(AGES_S.map(Self::DamonReclaim));
        all.extend(AGES_S.map(Self::IdleThreshold));
        all.extend(PRESSURES.map(Self::KatalystPsi));
        all.extend(ACCURACIES.map(Self::KatalystRefault));
        for (policy, sampled) in [(Policy::ColdAge, false), (Policy::Auto, false), (Policy::Auto, true), (Policy::Pressure, false)] {
            all.extend(Ours::intensities(policy, sampled).into_iter().map(Self::Ours));
        }
        for candidate in [Self::TwiceCold, Self::Marginal] {
            all.extend(Ours::intensities(Policy::Auto, false).into_iter().map(candidate));
        }
        all
    }

    /// Policy `auto` with `writeback.enabled = false`, of all pages and sampled. Not with the others, which have their defaults.
    #[must_use]
    pub fn all_without_writeback() -> Vec<Self> {
        [false, true].into_iter().flat_map(|sampled| Ours::intensities(Policy::Auto, sampled)).map(Self::WithoutWriteback).collect()
    }

    /// The law's name; that of all its intensities.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::MglruScript(_) => "MGLRU script",
            Self::Senpai(_) => "oomd senpai",
            Self::MemoryHigh(_) => "memory.high",
            Self::DamonReclaim(_) => "DAMON_RECLAIM",
            Self::IdleThreshold(_) => "idle threshold",
            Self::KatalystPsi(_) => "Katalyst psi",
            Self::KatalystRefault(_) => "Katalyst refault",
            Self::Ours(Ours { policy: Policy::ColdAge, .. }) => "Thermocline cold_age",
            Self::Ours(Ours { policy: Policy::Auto, sampled: false, .. }) => "Thermocline auto",
            Self::Ours(Ours { policy: Policy::Auto, sampled: true, .. }) => "Thermocline auto, sampled",
            Self::Ours(Ours { policy: Policy::Pressure, .. }) => "Thermocline pressure",
            Self::WithoutWriteback(Ours { sampled: false, .. }) => "Thermocline auto, without writeback",
            Self::WithoutWriteback(Ours { sampled: true, .. }) => "Thermocline auto, sampled, without writeback",
            Self::TwiceCold(_) => "candidate: auto, twice cold",
            Self::Marginal(_) => "candidate: auto, two tiers",
        }
    }

    /// Whether it is one of our policies with its defaults.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// Whether it belongs to a product other than ours: a candidate belongs to none.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        !matches!(self, Self::Ours(_) | Self::WithoutWriteback(_) | Self::TwiceCold(_) | Self::Marginal(_))
    }

    /// A new law on a trace. Its times are divided by the trace's compression, as ours are.
    #[must_use]
    pub fn law(&self, trace: &Trace, seed: u64) -> Box<dyn Law> {
        let seconds = |seconds: u64| trace.compressed_ms(seconds * 1_000);
        match *self {
            Self::MglruScript(age_s) => Box::new(MglruScript::new(seconds(age_s))),
            // One tick waits between two probes: with its interval of 6 s it probes every 7 s.
            Self::Senpai(pressure) => Box::new(Senpai::new(pressure, seconds(7))),
            Self::MemoryHigh(percent) => Box::new(MemoryHigh::new(units::Bytes(trace.occupied().0 * percent / 100))),
            Self::DamonReclaim(min_age_s) => Box::new(DamonReclaim::new(seconds(min_age_s), seed)),
            Self::IdleThreshold(idle_s) => Box::new(IdleThreshold::new(seconds(idle_s), seconds(60))),
            Self::KatalystPsi(threshold) => Box::new(KatalystPsi::new(threshold, seconds(30))),
            Self::KatalystRefault(accuracy) => Box::new(KatalystRefault::new(accuracy, seconds(30))),
            Self::Ours(ours) => ours.law(ours.constants(trace), trace, seed),
            Self::WithoutWriteback(ours) => Box::new(ours.without_writeback(ours.constants(trace), trace, seed)),
            Self::TwiceCold(ours) => {
                let first = ours.without_writeback(ours.constants(trace), trace, seed);
                Box::new(TwiceCold::new(first, seconds(TWICE_COLD_S), seconds(120)))
            }
            Self::Marginal(ours) => {
                let constants = ours.constants(trace);
                Box::new(Marginal::new(ours.without_writeback(constants, trace, seed), constants, trace.interval_ms))
            }
        }
    }
}

impl fmt::Display for Contender {
    /// The intensity.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MglruScript(age_s) | Self::DamonReclaim(age_s) | Self::IdleThreshold(age_s) => write!(f, "{} min", age_s / 60),
            Self::Senpai(share) | Self::KatalystPsi(share) | Self::KatalystRefault(share) => write!(f, "{} %", share * 100.0),
            Self::MemoryHigh(percent) => write!(f, "{percent} %"),
            Self::Ours(ours) | Self::WithoutWriteback(ours) | Self::TwiceCold(ours) | Self::Marginal(ours) => match ours.stall_target {
                Some(target) => write!(f, "{} %", f64::from(target.0) / 1e4),
                None => write!(f, "{}", ours.class.as_str()),
            },
        }
    }
}
