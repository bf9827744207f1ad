//! Senpai: the plugin of oomd (`docs/core_plugins.md` there), and the script senpai.py.

use super::Collected;
use super::source::{Node, percent};

/// What has no equivalent, with the reason.
const LOST: [(&str, &str); 9] = [
    ("limit_max_bytes", "a job has no upper size here; class `off` leaves a cgroup alone"),
    ("max_backoff", "after a stall beyond the target the budget of the following periods is reduced"),
    ("coeff_probe", "the law of policy `pressure` is linear (TMO section 3.3)"),
    ("coeff_backoff", "the law of policy `pressure` is linear (TMO section 3.3)"),
    ("memory_high_timeout_ms", "memory is reclaimed by requests that end by themselves; no limit is set"),
    ("immediate_backoff", "always so: nothing is reclaimed at or above the target"),
    ("swap_threshold", "the agent leaves a tenth of swap free, or what systemd-oomd tolerates and 5 % more"),
    ("swapout_bps_threshold", "use swap.write_budget, in bytes per day"),
    ("log_interval", "every decision is in the journal: `thermocline explain`"),
];

/// Rulesets of oomd: its actions `senpai`. Everything else kills, and stays with oomd.
pub(super) fn oomd(document: &Node) -> Collected {
    let mut found = Collected::default();
    for ruleset in document.get("rulesets").map(|rulesets| rulesets.items()).unwrap_or_default() {
        let name = ruleset.get("name").and_then(|name| name.text()).unwrap_or_else(|| "a ruleset without a name".to_owned());
        let actions = ruleset.get("actions").map(|actions| actions.items()).unwrap_or_default();
        let is_senpai = |action: &Node| action.get("name").and_then(|name| name.text()).is_some_and(|name| name.starts_with("senpai"));
        for action in &actions {
            match action.get("args").filter(|_| is_senpai(action)) {
                Some(arguments) => arguments.pairs().iter().for_each(|(key, value)| setting(&mut found, key, value)),
                None => found.lost(format!("ruleset {name:?}"), "it kills; keep oomd for it"),
            }
        }
    }
    found
}

fn setting(found: &mut Collected, key: &str, value: &Node) {
    let number = value.number();
    let text = value.text().unwrap_or_default();
    match (key, number) {
        ("cgroup", _) => text.split(',').for_each(|cgroup| found.rule(cgroup, "standard", "pressure")),
        ("interval", Some(seconds)) => found.set("pressure.period", format!("{seconds}s")),
        ("mem_pressure_pct", Some(share)) => found.set("pressure.stall_target", percent(share)),
        ("io_pressure_pct", Some(share)) => found.set("pressure.io_stall_target", percent(share)),
        // Its shares are ratios, ours are written in percent.
        ("max_probe", Some(ratio)) => found.set("pressure.step_max", percent(ratio * 100.0)),
        ("limit_min_bytes", Some(bytes)) => found.set("pressure.floor", format!("{bytes}B")),
        _ => {
            let why = LOST.iter().find(|(name, _)| *name == key).map_or("it has no equivalent", |(_, why)| why);
            found.lost(format!("{key} = {text}"), why);
        }
    }
}

/// Whether a line starts senpai.py.
pub(super) fn is_command_line(line: &str) -> bool {
    line.split_ascii_whitespace().take(3).any(|word| word.ends_with("senpai.py") || word == "senpai")
}

/// The command line of senpai.py: options with a value each, and the cgroup.
pub(super) fn command_line(text: &str) -> Collected {
    let mut found = Collected::default();
    let mut words = text.split_ascii_whitespace().skip_while(|word| !word.ends_with("senpai.py") && *word != "senpai").skip(1);
    let mut interval_s = 6.0;
    let mut pressure_us = None;
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--") else {
            found.rule(word, "standard", "pressure");
            continue;
        };
        let (name, value) = option.split_once('=').unwrap_or_else(|| (option, words.next().unwrap_or_default()));
        match (name, value.parse::<f64>().ok()) {
            ("interval", Some(seconds)) => {
                interval_s = seconds;
                found.set("pressure.period", format!("{seconds}s"));
            }
            ("pressure", us) => pressure_us = us,
            ("max-probe", Some(ratio)) => found.set("pressure.step_max", percent(ratio * 100.0)),
            ("min-size", Some(bytes)) => found.set("pressure.floor", format!("{bytes}B")),
            _ => {
                let key = name.replace('-', "_");
                let key = if key == "max_size" { "limit_max_bytes" } else { &key };
                let why = LOST.iter().find(|(known, _)| *known == key).map_or("it has no equivalent", |(_, why)| why);
                found.lost(format!("--{name} {value}"), why);
            }
        }
    }
    if let Some(us) = pressure_us {
        // Stall per interval, as a share of it.
        found.set("pressure.stall_target", percent(us / (interval_s * 1e6) * 100.0));
    }
    found
}
