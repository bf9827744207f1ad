//! damo: kdamonds, or a list of DAMOS schemes (`USAGE.md` and `SCHEMES` there), as JSON or YAML.

use super::Collected;
use super::source::{Node, milliseconds};

pub(super) fn import(document: &Node) -> Collected {
    let mut found = Collected::default();
    let kdamonds = document.get("kdamonds").unwrap_or_else(|| document.clone());
    for item in kdamonds.items() {
        let contexts = item.get("contexts").map(|contexts| contexts.items());
        let schemes = contexts.map_or_else(
            || vec![item.clone()],
            |contexts| {
                contexts.iter().flat_map(|context| context.get("schemes").map(|schemes| schemes.items()).unwrap_or_default()).collect()
            },
        );
        schemes.iter().for_each(|one| scheme(&mut found, one));
        for context in item.get("contexts").map(|contexts| contexts.items()).unwrap_or_default() {
            if context.get("intervals").is_some() {
                found.lost("intervals", "trackers choose their own; agent.scan_period is how often ages advance");
            }
            for target in context.get("targets").map(|targets| targets.items()).unwrap_or_default() {
                if let Some(pid) = target.get("pid").and_then(|pid| pid.text()) {
                    found.lost(format!("target pid {pid}"), "jobs are cgroups; add a rule for that of the process");
                }
            }
        }
    }
    found
}

fn scheme(found: &mut Collected, scheme: &Node) {
    let action = scheme.get("action").and_then(|action| action.text()).unwrap_or_default();
    let policy = match action.as_str() {
        "pageout" | "cold" => "cold_age",
        "migrate_cold" | "migrate_hot" => "slowdown",
        _ => return found.lost(format!("action {action}"), "it offloads nothing here"),
    };
    let cgroups = memory_cgroups(found, scheme);
    if cgroups.is_empty() {
        // A scheme of physical memory acts on all of it.
        found.rule("/system.slice/*.service", "standard", policy);
    }
    for (cgroup, takes) in cgroups {
        found.rule(&cgroup, if takes { "standard" } else { "off" }, if takes { policy } else { "" });
    }
    // A rule that excludes has to come first.
    found.rules.sort_by_key(|rule| rule.class != "off");
    let age = scheme.at(&["access_pattern", "age", "min"]).and_then(|age| age.text());
    if let Some(age) = age.filter(|_| policy == "cold_age") {
        match duration_ms(&age) {
            Some(ms) => found.lost(
                format!("age of at least {}", milliseconds(ms)),
                "the threshold is chosen for each job by its promotions; pages younger than agent.scan_period (120 s) never leave",
            ),
            None => found.lost(format!("age of at least {age}"), "the threshold is chosen for each job by its promotions"),
        }
    }
    quotas(found, scheme);
    for (key, why) in [
        ("watermarks", "far memory is used before memory is short; a job stalls less for it"),
        ("apply_interval_us", "agent.control_period is how often decisions are made"),
    ] {
        if scheme.get(key).is_some() {
            found.lost(key, why);
        }
    }
    for bound in ["sz_bytes", "nr_accesses"] {
        if scheme.at(&["access_pattern", bound]).is_some() {
            found.lost(format!("access_pattern.{bound}"), "pages are judged by age alone, whatever region they are in");
        }
    }
}

/// Cgroups that filters name, and whether their memory is taken. damo's older files call it `matching: false` where the
/// memory of a cgroup is let through, newer ones `allow: true`.
fn memory_cgroups(found: &mut Collected, scheme: &Node) -> Vec<(String, bool)> {
    let mut cgroups = Vec::new();
    for filter in scheme.get("filters").map(|filters| filters.items()).unwrap_or_default() {
        let kind = filter.get("filter_type").or_else(|| filter.get("type")).and_then(|kind| kind.text()).unwrap_or_default();
        let path = filter.get("memcg_path").and_then(|path| path.text()).filter(|path| !path.is_empty());
        let matching = filter.get("matching").is_none_or(|matching| matching.is_true());
        let allow = filter.get("allow").is_some_and(|allow| allow.is_true());
        match path.filter(|_| kind == "memcg") {
            Some(path) => cgroups.push((path, matching == allow)),
            None => found.lost(format!("filter {kind}"), "choose it by policy: `cold_age` takes swap-backed memory and page cache apart"),
        }
    }
    cgroups
}

fn quotas(found: &mut Collected, scheme: &Node) {
    let Some(quotas) = scheme.get("quotas") else { return };
    let reset_ms = quotas.get("reset_interval_ms").and_then(|reset| duration_ms(&reset.text()?)).filter(|ms| *ms > 0.0).unwrap_or(1_000.0);
    if let Some(bytes) = quotas.get("sz_bytes").and_then(|size| bytes(&size.text()?)).filter(|bytes| *bytes > 0.0) {
        let rate = (bytes * 1_000.0 / reset_ms).max(f64::from(1 << 20));
        found.set("agent.offload_rate", format!("{}MiB/s", (rate / f64::from(1 << 20)).round()));
    }
    if let Some(ms) = quotas.get("time_ms").and_then(|time| duration_ms(&time.text()?)).filter(|ms| *ms > 0.0) {
        found.set("agent.cpu_budget", format!("{}%", (ms / reset_ms * 100.0).clamp(0.1, 100.0)));
    }
    for goal in quotas.get("goals").map(|goals| goals.items()).unwrap_or_default() {
        let metric = goal.get("metric").or_else(|| goal.get("target_metric")).and_then(|metric| metric.text()).unwrap_or_default();
        match (metric.as_str(), goal.get("target_value").and_then(|value| value.number())) {
            // Microseconds of stall in each reset interval.
            ("some_mem_psi_us", Some(us)) => found.set("pressure.stall_target", format!("{}%", us / (reset_ms * 1_000.0) * 100.0)),
            _ => found.lost(format!("goal {metric}"), "objectives are per job: promotion rate, stall or slowdown"),
        }
    }
}

/// A time as damo reads it: a number of microseconds, or a number and a unit; `max` has no end.
fn duration_ms(text: &str) -> Option<f64> {
    let text = text.trim().replace(',', "");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..split].trim().parse().ok()?;
    let unit = match text[split..].trim() {
        "" | "us" | "usec" => 0.001,
        "ms" => 1.0,
        "s" => 1_000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    Some(number * unit)
}

fn bytes(text: &str) -> Option<f64> {
    let text = text.trim().replace(',', "");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..split].trim().parse().ok()?;
    let shift = match text[split..].trim().chars().next() {
        None | Some('B') => 0,
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        Some('T') => 40,
        Some(_) => return None,
    };
    Some(number * 2f64.powi(shift))
}
