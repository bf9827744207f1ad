//! What the agent promises, checked from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::group::{Group, PROTECTIONS, Role, SETTINGS};
use crate::kernel_files::directory;
use crate::machine::Machine;
use crate::plan::FLOOR_PAGES;

/// The share of swap that stays free, as one part in this many.
const SWAP_RESERVE_PARTS: u64 = 10;

/// Bytes of all files of the agent, at most: four files of the journal, its history, the undo list.
const STATE_BYTES_MAX: u64 = 6 << 20;

/// Cgroups that the agent may not set have the operator's values; with `all`, the others as well. `now` is what the files contain.
#[must_use]
pub fn settings(machine: &Machine, now: &BTreeMap<String, String>, all: bool) -> Vec<String> {
    let mut broken = Vec::new();
    let what = if all { "not restored" } else { "set without a right" };
    let mut compare = |name: &str, own: &str| {
        if let Some(now) = now.get(name).filter(|now| *now != own) {
            broken.push(format!("{what}: {name} contains {now}, the operator's value is {own}"));
        }
    };
    for group in machine.groups.iter().filter(|group| group.alive) {
        for (setting, file) in SETTINGS.iter().enumerate().filter(|(setting, _)| all || !group.may_be_set(*setting)) {
            compare(&format!("{}/{file}", directory(&group.path)), &group.own[setting]);
        }
    }
    if all {
        machine.own.iter().for_each(|(name, own)| compare(name, own));
    }
    // A job's protection, and that of the cgroups above it, may be raised and is never lowered.
    for group in machine.groups.iter().filter(|group| group.alive && !all && group.may_be_set(PROTECTIONS[0])) {
        for setting in PROTECTIONS {
            let file = SETTINGS[setting];
            let now = now.get(&format!("{}/{file}", directory(&group.path))).and_then(|now| now.parse::<u64>().ok());
            if let Some((now, own)) = now.zip(group.own[setting].parse().ok()).filter(|(now, own)| now < own) {
                broken.push(format!("{}: {file} is {now}, the operator's value is {own}", group.path));
            }
        }
    }
    broken
}

/// What the requests of a turn may be.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Whether the agent may act at all.
    pub acts: bool,
    /// Whether swap and the way in which the kernel answers have been the same for some periods, so that the agent knows them.
    pub steady: bool,
    /// Whether a scan ended in this turn.
    pub scanned: bool,
    /// Whether scans last for some turns now, or did at the last one; or the agent was killed in this turn.
    pub slow_scans: bool,
}

/// The requests of a turn are for jobs, and within what was idle, the floor, and the room in swap.
#[must_use]
pub fn requests(machine: &mut Machine, allowed: Allowed) -> Vec<String> {
    let mut broken = Vec::new();
    let reserve = machine.swap_pages / SWAP_RESERVE_PARTS;
    if allowed.scanned {
        for group in &mut machine.groups {
            // In which of the turns since the last one it measured is not known.
            group.cold = if allowed.slow_scans { group.idle_most } else { group.idle_before };
            (group.asked, group.idle_most) = (0, 0);
        }
    }
    for request in machine.requests.clone() {
        let Some(group) = machine.groups.iter_mut().find(|group| group.path == request.path) else {
            broken.push(format!("{} was asked for memory, and does not exist", request.path));
            continue;
        };
        if !allowed.acts || group.role != Role::Job {
            broken.push(format!("{} was asked for memory: class {}, may act: {}", group.path, group.class, allowed.acts));
        }
        if !group.alive {
            continue;
        }
        broken.extend(amount(group, request.pages, request.swappiness));
        if allowed.steady && request.swappiness > 0 && request.pages > 0 && request.swap_free < reserve {
            broken.push(format!("{}: {} pages of swap are free, {reserve} are to stay free", group.path, request.swap_free));
        }
    }
    broken
}

fn amount(group: &mut Group, pages: u64, swappiness: u8) -> Option<String> {
    let peak = group.peaks.into_iter().max().unwrap_or(0);
    if group.policy == "pressure" {
        let floor = FLOOR_PAGES.max(group.own_protection());
        return (pages > peak.saturating_sub(floor))
            .then(|| format!("{}: asked for {pages} pages of {peak}, the floor is {floor}", group.path));
    }
    if swappiness > 0 {
        group.asked += pages;
        if group.asked > group.cold {
            return Some(format!("{}: asked for {} pages since the last scan, which found {} idle", group.path, group.asked, group.cold));
        }
    }
    None
}

/// The agent's files do not grow without bound.
#[must_use]
pub fn size(directories: [&Path; 2]) -> Option<String> {
    let bytes = directories
        .iter()
        .flat_map(|path| fs::read_dir(path).into_iter().flatten())
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
    let bytes: u64 = bytes.sum();
    (bytes > STATE_BYTES_MAX).then(|| format!("the agent's files have {bytes} bytes"))
}
