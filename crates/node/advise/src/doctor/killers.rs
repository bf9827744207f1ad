//! Programs that end jobs when memory or swap runs out.

use std::collections::BTreeSet;
use std::path::PathBuf;

use agent::killers::{Killers, Kubelet, Oomd};
use kernel::{Roots, file};

use super::check::{Check, Rank, Status, check};

/// Directories of unit files, of which an earlier one has precedence.
const UNITS: [&str; 5] =
    ["etc/systemd/system.control", "run/systemd/system.control", "etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system"];
/// Unit files and drop-in files that are read at most.
const FILES_MAX: usize = 20_000;
/// Units that are named.
const NAMED_MAX: usize = 5;

/// Reports systemd-oomd and the kubelet, if they run: what makes them act, and how the agent stays clear of it.
pub(super) fn killers(roots: &Roots) -> Vec<Check> {
    let killers = Killers::read(roots);
    let reserve = killers.swap_reserve();
    let oomd = killers.oomd.map(|Oomd { swap_used_limit, pressure_limit }| {
        let what = format!(
            "kills when more than {swap_used_limit} of both memory and swap is used, and units with ManagedOOMMemoryPressure=kill at a \
             pressure of {pressure_limit} unless they state another; the agent leaves {reserve} of swap free"
        );
        check("systemd-oomd", Status::Ok, what, "")
    });
    let managed = oomd.as_ref().and_then(|_| managed_swap(roots));
    let kubelet = killers.kubelet.map(|Kubelet { eviction, swap }| {
        let eviction = eviction.unwrap_or_else(|| "100Mi, its default".to_owned());
        let evicts = format!("evicts pods below memory.available = {eviction}; swap and zswap do not count there");
        if swap {
            return check("kubelet", Status::Ok, evicts, "");
        }
        let remedy = "set memorySwap.swapBehavior: LimitedSwap in its configuration; LimitedSwap opens swap to Burstable pods only";
        check("kubelet", Status::Advice, format!("{evicts}. Swap of pods is closed, so only their page cache can be reclaimed"), remedy)
            .ranked(Rank::Costs)
    });
    oomd.into_iter().chain(managed).chain(kubelet).collect()
}

/// Units of which systemd-oomd kills the cgroup with the most swap, when swap runs out (`ManagedOOMSwap=kill`).
fn managed_swap(roots: &Roots) -> Option<Check> {
    let units = units_with(roots, "ManagedOOMSwap=kill");
    let names: Vec<_> = units.iter().take(NAMED_MAX).cloned().collect();
    let more = units.len().saturating_sub(names.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let found = format!(
        "kills what uses most swap in {}{more} when swap runs out; far memory counts as swap there, so the job that saves most is killed",
        names.join(", ")
    );
    let remedy = "let pressure decide instead (ManagedOOMMemoryPressure=kill), for these units:";
    let commands = names.iter().map(|unit| format!("systemctl set-property {unit} ManagedOOMSwap=auto"));
    (!units.is_empty()).then(|| check("managed_oom_swap", Status::Advice, found, remedy).ranked(Rank::Costs).with_commands(commands))
}

/// Names of the units whose files or drop-ins set `line`, and of which no drop-in of higher precedence sets the same key otherwise.
fn units_with(roots: &Roots, line: &str) -> BTreeSet<String> {
    let key = line.split('=').next().unwrap_or(line);
    let mut decided = BTreeSet::new();
    let mut found = BTreeSet::new();
    let mut read = 0;
    for directory in UNITS {
        let Ok(entries) = std::fs::read_dir(roots.root.join(directory)) else { continue };
        // Drop-ins of a unit have precedence over its file.
        let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        entries.sort_by_key(|path| !path.is_dir());
        for path in entries {
            let Some(unit) = path.file_name().and_then(|name| name.to_str()).map(|name| name.trim_end_matches(".d").to_owned()) else {
                continue;
            };
            if decided.contains(&unit) {
                continue;
            }
            let files = if path.is_dir() {
                std::fs::read_dir(&path).map_or_else(|_| Vec::new(), |files| files.flatten().map(|file| file.path()).collect())
            } else {
                vec![path]
            };
            for path in files {
                read += 1;
                if read > FILES_MAX {
                    return found;
                }
                let Ok(Some(text)) = file::read_optional(&path, file::LARGE) else { continue };
                if let Some(set) = text.lines().rfind(|set| set.trim_start().starts_with(key)) {
                    decided.insert(unit.clone());
                    if set.trim().replace(' ', "") == line {
                        found.insert(unit.clone());
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn units_that_are_killed_for_their_swap_are_named() {
        let oomd = ("sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs", "812\n");
        let slice = ("usr/lib/systemd/system/-.slice.d/10-oomd.conf", "[Slice]\nManagedOOMSwap=kill\n");
        let unit = ("usr/lib/systemd/system/web.service", "[Service]\nManagedOOMSwap = kill\n");
        let off = ("etc/systemd/system.control/web.service.d/50-ManagedOOMSwap.conf", "[Service]\nManagedOOMSwap=auto\n");
        let found = |files: &[(&str, &str)]| {
            let (_keep, roots) = tree(files);
            killers(&roots).into_iter().find(|check| check.name == "managed_oom_swap").map(|check| check.commands.join("; "))
        };
        assert_eq!(found(&[slice, unit]), None, "systemd-oomd does not run");
        assert_eq!(found(&[oomd]), None);
        let root = "systemctl set-property -.slice ManagedOOMSwap=auto";
        assert_eq!(found(&[oomd, slice, off, unit]).as_deref(), Some(root), "the operator's setting has precedence");
        assert_eq!(found(&[oomd, slice, unit]).unwrap(), format!("{root}; systemctl set-property web.service ManagedOOMSwap=auto"));
    }
}
