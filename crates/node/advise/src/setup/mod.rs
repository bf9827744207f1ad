//! A configuration for what was observed: which jobs get far memory, and what the machine needs for it. Pure, except for [`Far::read`].
//!
//! A proposal adds to the operator's file and removes nothing: rules for single jobs or families of jobs, placed before the rules that
//! are there, and `zswap.manage` where zswap is off. A job that the operator has decided about (any class but `observe`) is left as it is.

mod edit;

use std::collections::BTreeMap;

use agent::discover::Rules;
use config::{Class, Config};
use kernel::block::BlockDevice;
use kernel::zram::Zram;
use kernel::zswap::Zswap;
use kernel::{Roots, swap};
use serde::{Deserialize, Serialize};
use settings::Problems;
use units::{Bytes, RatioPpm};

use crate::jobs::{self, Sort};

/// A job that could save less than this share of its memory is not worth a rule.
const WORTH_RATIO: RatioPpm = RatioPpm(10_000);
/// Nor one that could save less than this.
const WORTH_BYTES: Bytes = Bytes::mib(4);

/// What was observed: the part of an agent's view that a proposal depends on.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Observation {
    /// The jobs.
    pub jobs: Vec<ObservedJob>,
}

/// One observed job.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ObservedJob {
    /// Its cgroup.
    pub job: String,
    /// Memory charged to it.
    pub memory_bytes: Bytes,
    /// What offloading it would save, net of compressed copies; `None` if that was not known yet.
    pub could_save_bytes: Option<Bytes>,
    /// What that can become at most; known earlier.
    #[serde(default)]
    pub could_save_at_most_bytes: Option<Bytes>,
}

/// What the machine has to offload to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Far {
    /// Whether it has swap space.
    pub swap: bool,
    /// Whether pages are compressed: zswap is on, or an area of swap is zram.
    pub compressed: bool,
    /// Whether the kernel has zswap.
    pub has_zswap: bool,
}

impl Far {
    /// Reads it from the kernel. What cannot be read is absent.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let areas = swap::read(roots).unwrap_or_default();
        let zswap = Zswap::probe(roots).and_then(|zswap| zswap.parameters());
        let is_zram = |area| BlockDevice::under_swap(roots, area).and_then(Zram::of).is_ok_and(|zram| zram.is_some());
        Self {
            swap: !areas.is_empty(),
            compressed: zswap.as_ref().is_ok_and(|zswap| zswap.enabled == Some(true)) || areas.iter().any(is_zram),
            has_zswap: zswap.is_ok(),
        }
    }
}

/// A change of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proposal {
    /// The file with the change.
    pub text: String,
    /// The rules that are added.
    pub rules: Vec<ProposedRule>,
    /// Whether `zswap.manage` is set.
    pub manages_zswap: bool,
    /// What is left alone or could not be decided, and why.
    pub remarks: Vec<String>,
}

/// A rule that is added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProposedRule {
    /// Its pattern.
    pub cgroup: String,
    /// Its class.
    pub class: &'static str,
    /// How many observed jobs it treats.
    pub jobs: usize,
    /// Their memory.
    pub memory_bytes: Bytes,
    /// What they could save.
    pub could_save_bytes: Bytes,
    /// Whether that is an upper bound, because a job's history is too short for an estimate.
    pub at_most: bool,
}

/// Proposes a change of the file `text`, which is part of the configuration in effect, `config`.
///
/// # Errors
/// If the file with the change would not be valid: it has a form that this change does not suit.
pub fn propose(roots: &Roots, text: &str, config: &Config, observed: &Observation, far: Far) -> Result<Proposal, Problems> {
    let mut proposal = Proposal::default();
    let mut rules: BTreeMap<String, (Sort, ProposedRule)> = BTreeMap::new();
    let mut known = Rules::new(config).ok();
    for job in &observed.jobs {
        if let Some(remark) = decided(roots, known.as_mut(), job).or_else(|| guaranteed(&job.job)) {
            proposal.remarks.push(remark);
            continue;
        }
        let Some(saving) = job.could_save_bytes.or(job.could_save_at_most_bytes) else {
            proposal.remarks.push(format!("{}: what it could save is not known yet; observe it for longer", job.job));
            continue;
        };
        let (pattern, sort) = pattern(&job.job);
        let (_, rule) = rules.entry(pattern.clone()).or_insert_with(|| (sort, ProposedRule { cgroup: pattern, ..ProposedRule::default() }));
        rule.jobs += 1;
        rule.memory_bytes += job.memory_bytes;
        rule.could_save_bytes += saving;
        // What the agent then offloads is limited by the objective, whatever the estimate.
        rule.at_most |= job.could_save_bytes.is_none();
    }
    for (sort, mut rule) in rules.into_values() {
        rule.class = class(sort).as_str();
        let worth = rule.could_save_bytes >= WORTH_BYTES && rule.could_save_bytes.0 >= WORTH_RATIO.share_of(rule.memory_bytes.0);
        if worth {
            proposal.rules.push(rule);
        } else {
            let ProposedRule { cgroup, could_save_bytes, memory_bytes, .. } = rule;
            proposal.remarks.push(format!("{cgroup}: could save {could_save_bytes} of {memory_bytes}, too little for a rule"));
        }
    }
    proposal.rules.sort_by(|a, b| b.could_save_bytes.cmp(&a.could_save_bytes).then_with(|| a.cgroup.cmp(&b.cgroup)));
    if !far.swap {
        proposal
            .remarks
            .push("this machine has no swap, so that only page cache can be offloaded; `thermocline doctor` prints the command".to_owned());
    }
    let manage = far.swap && far.has_zswap && !far.compressed && !config.zswap.manage && !proposal.rules.is_empty();
    proposal.manages_zswap = manage;
    proposal.text = edit::edited(text, &proposal);
    if proposal.manages_zswap && proposal.text == edit::edited(text, &Proposal { manages_zswap: false, ..proposal.clone() }) {
        proposal.manages_zswap = false;
        proposal.remarks.push("zswap is off, and the file sets zswap.manage = false: memory goes to the swap device".to_owned());
    }
    Config::from_str("the proposed file", &proposal.text)?;
    Ok(proposal)
}

/// What the operator has decided about a job; `None` if it is only observed, or has no rule.
fn decided(roots: &Roots, rules: Option<&mut Rules>, job: &ObservedJob) -> Option<String> {
    let rules = rules?;
    if rules.is_off(&job.job) {
        return Some(format!("{}: left as configured, class off", job.job));
    }
    let found = rules.find(roots, std::slice::from_ref(&job.job));
    let class = found.jobs.first()?.treatment.class;
    (class != Class::Observe).then(|| format!("{}: left as configured, class {}", job.job, class.as_str()))
}

/// A pod of QoS class Guaranteed has what it requested, and its owner expects all of it in DRAM.
fn guaranteed(path: &str) -> Option<String> {
    let is = path.starts_with("/kubepods.slice/kubepods-pod") || path.starts_with("/kubepods/pod");
    is.then(|| format!("{path}: left alone, a container of a Guaranteed pod"))
}

/// The pattern for a job, and what it is: its own path if it keeps it over a restart, otherwise the pattern of its family.
fn pattern(path: &str) -> (String, Sort) {
    let Some((family, sort)) = jobs::recognize(path) else { return (escaped(path), Sort::Service) };
    if sort == Sort::Service {
        return (escaped(path), sort);
    }
    let burstable = |family: &str| match family.strip_prefix("/**") {
        Some(rest) if path.starts_with("/kubepods.slice/") => format!("/kubepods.slice/kubepods-{{burstable,besteffort}}.slice/**{rest}"),
        _ if path.starts_with("/kubepods/") => "/kubepods/{burstable,besteffort}/pod*/*".to_owned(),
        _ => family.to_owned(),
    };
    (burstable(family), sort)
}

/// The owner of a virtual machine's memory states no objective, so the machine gets the most careful one.
const fn class(sort: Sort) -> Class {
    match sort {
        Sort::VirtualMachine => Class::Conservative,
        Sort::Container | Sort::Service => Class::Standard,
    }
}

/// A path as a pattern that matches it alone.
fn escaped(path: &str) -> String {
    let mut pattern = String::with_capacity(path.len());
    for c in path.chars() {
        if "*?[]{}\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests;
