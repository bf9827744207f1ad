//! Katalyst's memory offloading: the custom resource `TransparentMemoryOffloadingConfiguration` (kubewharf/katalyst-api,
//! `pkg/apis/config/v1alpha1`), and annotations of pods.

use super::source::{Node, percent};
use super::{Collected, Rule};

/// What Katalyst's keys begin with.
const DOMAIN: &str = "katalyst.kubewharf.io/";
const QOS: &str = "katalyst.kubewharf.io/qos_level";
const PODS: &str = "/kubepods.slice/**";

/// Katalyst's annotations of a pod, or of the template of a workload.
pub(super) fn annotations(document: &Node) -> Vec<(String, String)> {
    let places: [&[&str]; 2] = [&["metadata", "annotations"], &["spec", "template", "metadata", "annotations"]];
    let all = places.iter().filter_map(|place| document.at(place)).flat_map(|annotations| annotations.pairs());
    all.filter_map(|(key, value)| Some((key, value.text()?))).filter(|(key, _)| key.starts_with(DOMAIN)).collect()
}

pub(super) fn import(document: &Node) -> Collected {
    let mut found = Collected::default();
    let config = document.at(&["spec", "config"]).unwrap_or_else(|| document.clone());
    for level in config.get("qosLevelConfig").map(|levels| levels.items()).unwrap_or_default() {
        let name = level.get("qosLevel").and_then(|name| name.text()).unwrap_or_default();
        if let Some(detail) = level.get("configDetail") {
            let rule = Rule { annotation: Some(format!("{QOS}={name}")), cgroup: PODS.to_owned(), ..Rule::default() };
            settings(&mut found, &format!("qosLevel {name}"), rule, &detail);
        }
    }
    for group in config.get("cgroupConfig").map(|groups| groups.items()).unwrap_or_default() {
        let path = group.get("cgroupPath").and_then(|path| path.text()).unwrap_or_default();
        if let Some(detail) = group.get("configDetail") {
            let rule = Rule { cgroup: super::pattern(&path), ..Rule::default() };
            settings(&mut found, &format!("cgroupPath {path}"), rule, &detail);
        }
    }
    for key in ["blockConfig", "poolNameConfig"] {
        if config.get(key).is_some() {
            found.lost(key, "write a rule of class `off`, or of another class, for these pods by `annotation` or `container`");
        }
    }
    for (key, value) in annotations(document) {
        match key.as_str() {
            QOS => found.rules.push(Rule {
                cgroup: PODS.to_owned(),
                annotation: Some(format!("{key}={value}")),
                class: class(&value),
                policy: "",
            }),
            _ => found.lost(format!("{key} = {value}"), "it has no equivalent"),
        }
    }
    if found.rules.iter().any(|rule| rule.annotation.is_some()) {
        found.lost("annotations", "the container runtime must pass them on: pod_annotations of containerd, allowed_annotations of CRI-O");
    }
    found
}

/// The class for a level: the reclaimed cores of batch work, and cores of their own.
fn class(level: &str) -> &'static str {
    match level {
        "reclaimed_cores" => "aggressive",
        "dedicated_cores" | "system_cores" => "conservative",
        _ => "standard",
    }
}

fn settings(found: &mut Collected, name: &str, mut rule: Rule, detail: &Node) {
    let level = rule.annotation.as_deref().and_then(|annotation| annotation.split_once('=')).map_or("", |(_, level)| level).to_owned();
    let on = detail.get("enableTMO").is_some_and(|on| on.is_true());
    let policy = detail.get("policyName").and_then(|policy| policy.text()).unwrap_or_else(|| "PSI".to_owned());
    rule.class = if on { class(&level) } else { "off" };
    // Its law by refaults adjusts an amount; ours weighs refaults beside ages.
    rule.policy = match policy.as_str() {
        _ if !on => "",
        "PSI" => "pressure",
        _ => "auto",
    };
    found.rules.push(rule);
    if !on {
        return;
    }
    for (key, value) in detail.pairs() {
        match (key.as_str(), value.number()) {
            ("enableTMO" | "policyName", _) => {}
            ("enableSwap", _) if value.is_true() => {}
            ("enableSwap", _) => {
                found.lost(format!("{name}: enableSwap = false"), "memory.swap.max of these cgroups is respected; set it to 0")
            }
            ("interval", _) => {
                found.lost(format!("{name}: interval = {}", value.text().unwrap_or_default()), "use pressure.period, for all jobs")
            }
            ("psiPolicy", _) => {
                // Both are shares: the threshold in percent, as the kernel prints averages.
                if let Some(target) = value.get("psiAvg60Threshold").and_then(|target| target.number()) {
                    found.set("pressure.stall_target", percent(target));
                }
                if let Some(probe) = value.get("maxProbe").and_then(|probe| probe.number()) {
                    found.set("pressure.step_max", percent(probe * 100.0));
                }
            }
            ("refaultPolicy", _) => {
                found.lost(format!("{name}: refaultPolicy"), "refaults count by their latency towards the stall target")
            }
            _ => found.lost(format!("{name}: {key}"), "it has no equivalent"),
        }
    }
}
