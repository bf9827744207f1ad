//! Which settings take effect in a running agent.

use settings::Knob;

use crate::bundle::rolls_out;
use crate::config::{Config, knobs};

/// Knobs besides those of bundles that are read each time they are used. All others are read once, at the start: directories,
/// listeners, trackers and their scans, and what was set in the kernel and must be restored.
const READ_EACH_TIME: [&str; 11] = [
    "agent.policy",
    "agent.tier",
    "agent.actuator",
    "agent.offload_rate",
    "agent.cpu_budget",
    "agent.jobs_max",
    "agent.split_idle",
    "agent.split_busy",
    "writeback.enabled",
    "writeback.after_min",
    "writeback.period_max",
];

/// A configuration file that was read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reload {
    /// The new configuration, with the former values of what takes effect only at a start.
    pub config: Config,
    /// The keys that changed and take effect at once.
    pub changed: Vec<&'static str>,
    /// The keys that changed and take effect at the next start.
    pub at_restart: Vec<&'static str>,
    /// Whether the job rules changed, which takes effect at once.
    pub rules: bool,
}

/// Whether a changed value takes effect in a running agent.
#[must_use]
pub fn reloads(knob: &Knob) -> bool {
    rolls_out(knob) || knob.table() == "guard" || READ_EACH_TIME.contains(&knob.key)
}

impl Reload {
    /// Compares the configuration of a running agent with `new`.
    #[must_use]
    pub fn of(running: &Config, new: Config) -> Self {
        let rules = running.jobs != new.jobs;
        let mut reload = Self { config: new, changed: Vec::new(), at_restart: Vec::new(), rules };
        for knob in knobs() {
            let (Some(before), Some(now)) = (running.get(knob.key), reload.config.get(knob.key)) else { continue };
            if before == now {
                continue;
            }
            if reloads(knob) {
                reload.changed.push(knob.key);
            } else {
                reload.at_restart.push(knob.key);
                reload.config.set(knob, before);
            }
        }
        reload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_once_keeps_its_value_and_is_named() {
        let running = Config::from_str("a", "agent.scan_period = \"60s\"\n[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\n").unwrap();
        let text = "agent.scan_period = \"90s\"\nagent.cpu_budget = \"5%\"\ncold_age.promotion_rate = \"0.1%\"\nzswap.manage = true\n\
                    guard.enabled = true\n[[job]]\ncgroup = \"/b\"\nclass = \"standard\"\n";
        let reload = Reload::of(&running, Config::from_str("b", text).unwrap());
        assert_eq!(reload.changed, ["agent.cpu_budget", "cold_age.promotion_rate", "guard.enabled"]);
        assert_eq!((reload.at_restart, reload.rules), (vec!["agent.scan_period", "zswap.manage"], true));
        assert_eq!((reload.config.agent.scan_period, reload.config.zswap.manage), (running.agent.scan_period, running.zswap.manage));
        assert_eq!(reload.config.jobs[0].cgroup, "/b");
        let same = Reload::of(&running, running.clone());
        assert!(same.changed.is_empty() && same.at_restart.is_empty() && !same.rules && same.config == running);
    }

    #[test]
    fn every_key_of_the_list_exists() {
        for key in READ_EACH_TIME {
            assert!(crate::config::knob(key).is_some(), "{key}");
        }
    }
}
