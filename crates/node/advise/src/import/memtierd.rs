//! memtierd: a YAML file in which the configurations of policy, tracker and process watcher are YAML in text.

use super::Collected;
use super::source::Node;

pub(super) fn import(document: &Node, policy: &Node) -> Collected {
    let mut found = Collected::default();
    let name = policy.get("name").and_then(|name| name.text()).unwrap_or_default();
    let settings = configured(policy);
    let swaps = settings.as_ref().is_some_and(|settings| number(settings, "swapoutms") > 0.0);
    let places = settings.as_ref().is_some_and(|settings| settings.get("idlenumas").or_else(|| settings.get("coldnumas")).is_some());
    // Nodes for idle memory make it a policy of placement, swapping one of far memory.
    let rule = match (places, swaps || name == "ratio") {
        (true, _) => "slowdown",
        (false, true) => "cold_age",
        (false, false) => {
            found.lost(format!("policy {name}"), "it neither swaps nor names nodes for idle memory");
            return found;
        }
    };
    let Some(settings) = settings else { return found };
    let watcher = settings.get("pidwatcher");
    let cgroups = watcher.as_ref().and_then(configured).and_then(|watcher| watcher.get("cgroups")).map(|cgroups| cgroups.items());
    for cgroup in cgroups.unwrap_or_default().iter().filter_map(Node::text) {
        found.rule(&cgroup, "standard", rule);
    }
    if found.rules.is_empty() {
        found.lost("pidwatcher", "it names no cgroups; all services are taken");
        found.rule("/system.slice/*.service", "standard", rule);
    }
    for (key, value) in settings.pairs() {
        setting(&mut found, &key, &value, rule);
    }
    if document.get("routines").is_some() {
        found.lost("routines", "statistics are metrics and the journal here");
    }
    found
}

fn setting(found: &mut Collected, key: &str, value: &Node, policy: &str) {
    let text = value.text().unwrap_or_default();
    match key {
        "pidwatcher" => {}
        "mover" => {
            let rate = value.get("bandwidth").and_then(|rate| rate.number()).filter(|rate| *rate > 0.0);
            let knob = if policy == "slowdown" { "slow.move_rate" } else { "agent.offload_rate" };
            if let Some(rate) = rate {
                found.set(knob, format!("{rate}MiB/s"));
            }
            found.lost("mover.intervalms", "memory is moved in small steps between decisions");
        }
        "tracker" => {
            let name = value.get("name").and_then(|name| name.text()).unwrap_or_default();
            let tracker = match name.as_str() {
                "idlepage" => "page_idle",
                "damon" => "damon",
                _ => return found.lost(format!("tracker {name}"), "agent.tracker = \"auto\" takes the most exact one that the kernel has"),
            };
            found.set("agent.tracker", tracker.to_owned());
            found.lost("tracker.config", "trackers choose their own regions and intervals");
        }
        "swapoutms" | "idledurationms" | "idleduration" => {
            found.lost(format!("{key} = {text}"), "the threshold is chosen for each job by its promotions, or its access rates");
        }
        "idlenumas" | "coldnumas" => {
            let nodes: Vec<_> = value.items().iter().filter_map(Node::text).collect();
            match &nodes[..] {
                [node] => found.set("slow.node", node.clone()),
                _ => found.lost(format!("{key} = {}", nodes.join(", ")), "one slow node is used: set slow.node"),
            }
        }
        "intervalms" => found.lost(format!("{key} = {text}"), "agent.control_period is how often decisions are made"),
        _ => found.lost(format!("{key} = {text}"), "it has no equivalent"),
    }
}

fn number(node: &Node, key: &str) -> f64 {
    node.get(key).and_then(|value| value.number()).unwrap_or(0.0)
}

/// The text `config` of an item, which is YAML again.
fn configured(item: &Node) -> Option<Node> {
    Node::parse(&item.get("config")?.text()?).ok()
}
