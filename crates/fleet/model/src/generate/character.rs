//! Characters of generated fleets: what most of their promotions are caused by.

use std::fmt;
use std::str::FromStr;

use super::kinds::{KINDS, Kind};

/// What a fleet's jobs do beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Character {
    /// The kinds of [`KINDS`], which fit what is published of fleets.
    #[default]
    Mixed,
    /// Phases are eight times as frequent: each touches a part of the memory and changes the load.
    Phased,
    /// All jobs touch a part of their memory at the same time each night: backups, log rotation, package updates.
    Nightly,
    /// Loads vary twice as much, and the largest sweeps touch nearly everything.
    HeavyTailed,
}

impl Character {
    /// All characters by name.
    pub const ALL: [(&'static str, Self); 4] =
        [("mixed", Self::Mixed), ("phased", Self::Phased), ("nightly", Self::Nightly), ("heavy_tailed", Self::HeavyTailed)];

    /// The kinds of jobs of a fleet of this character, with `bursts` times as many sweeps, nightly ones aside, and phases.
    pub(super) fn kinds(self, bursts: f64) -> Vec<Kind> {
        let kinds = KINDS.iter().map(|kind| {
            let kind = Kind { sweeps_per_day: kind.sweeps_per_day * bursts, phase_hours: kind.phase_hours / bursts, ..*kind };
            match self {
                Self::Mixed => kind,
                Self::Phased => Kind { phase_hours: kind.phase_hours / 8.0, ..kind },
                Self::Nightly => Kind { nightly: 0.25, ..kind },
                Self::HeavyTailed => Kind { noise: kind.noise * 2.0, sweep_max: 0.9, ..kind },
            }
        });
        kinds.collect()
    }
}

impl FromStr for Character {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, one)| *one).ok_or_else(|| format!("choose one of {}", names()))
    }
}

impl fmt::Display for Character {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, one)| one == self).map_or("mixed", |(name, _)| name))
    }
}
