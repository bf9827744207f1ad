//! Effective memory protection: what `memory.low` and `memory.min` guarantee once the ancestors' settings are applied.
//!
//! A cgroup's protection is bounded by what its parent affords. If the children of a parent claim more than that, it is divided
//! in proportion to their claims; with the mount option `memory_recursiveprot`, what they do not claim is divided in proportion
//! to their unprotected memory (`effective_protection()` in `mm/page_counter.c`).

use std::collections::HashMap;

use units::Bytes;

use super::{Cgroup, CgroupRoot, Limit, parse_limit};
use crate::{Result, Roots, file};

const FILES: [&str; 2] = ["memory.min", "memory.low"];

/// Whether the cgroup v2 hierarchy is mounted with `memory_recursiveprot`, as systemd does.
///
/// # Errors
/// If `/proc/self/mountinfo` cannot be read.
pub fn is_recursive(roots: &Roots) -> Result<bool> {
    let text = file::read(&roots.proc.join("self/mountinfo"), file::LARGE)?;
    // Optional fields end with a hyphen; then: type, source, options of the file system.
    let of_type = |line: &str| line.split_once(" - ").and_then(|(_, rest)| rest.strip_prefix("cgroup2 ")).map(str::to_owned);
    let options = text.lines().filter_map(of_type).filter_map(|rest| rest.split_once(' ').map(|(_, options)| options.to_owned()));
    Ok(options.into_iter().any(|options| options.trim().split(',').any(|option| option == "memory_recursiveprot")))
}

/// A cgroup's protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// The larger of its own `memory.low` and `memory.min`, as far as it uses that much.
    pub claimed: Bytes,
    /// The part of its memory that is protected in effect.
    pub effective: Bytes,
}

/// Protection of the cgroups of one hierarchy at one moment. What it reads is read once.
#[derive(Debug)]
pub struct ProtectionTree {
    root: CgroupRoot,
    recursive: bool,
    nodes: HashMap<String, Node>,
}

/// A cgroup with children, or a job. Both settings: `memory.min`, `memory.low`.
#[derive(Clone, Copy, Debug)]
struct Node {
    usage: u64,
    effective: [u64; 2],
    /// What the children claim; only known for parents.
    claimed: Option<[u64; 2]>,
}

impl ProtectionTree {
    /// Reads nothing yet. `recursive` is [`is_recursive`].
    #[must_use]
    pub fn new(root: &CgroupRoot, recursive: bool) -> Self {
        Self { root: root.clone(), recursive, nodes: HashMap::new() }
    }

    /// The protection of a cgroup below the root.
    ///
    /// # Errors
    /// Any error of the files of the cgroup or of an ancestor.
    pub fn of(&mut self, cgroup: &Cgroup) -> Result<Protected> {
        let node = self.node(cgroup.name())?;
        let claimed = FILES.map(|name| cgroup.setting(name));
        let effective = node.effective.into_iter().max().unwrap_or(0).min(node.usage);
        let [min, low] = claimed;
        Ok(Protected { claimed: Bytes(min?.max(low?).min(node.usage)), effective: Bytes(effective) })
    }

    fn node(&mut self, name: &str) -> Result<Node> {
        if let Some(node) = self.nodes.get(name) {
            return Ok(*node);
        }
        let cgroup = Cgroup::open(&self.root, name)?;
        let usage = cgroup.current()?.0;
        let settings = [cgroup.setting(FILES[0])?, cgroup.setting(FILES[1])?];
        let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
        let effective = if parent.is_empty() {
            settings
        } else {
            let (node, claimed) = self.parent(parent)?;
            let one = |kind: usize| effective((usage, settings[kind]), (node.usage, node.effective[kind], claimed[kind]), self.recursive);
            [one(0), one(1)]
        };
        let node = Node { usage, effective, claimed: None };
        self.nodes.insert(name.to_owned(), node);
        Ok(node)
    }

    /// A parent, and what its children claim.
    fn parent(&mut self, name: &str) -> Result<(Node, [u64; 2])> {
        let node = self.node(name)?;
        if let Some(claimed) = node.claimed {
            return Ok((node, claimed));
        }
        let mut sum = [0u64; 2];
        for child in Cgroup::open(&self.root, name)?.children()? {
            for (sum, file) in sum.iter_mut().zip(FILES) {
                *sum = sum.saturating_add(child.claim(file).0);
            }
        }
        self.nodes.insert(name.to_owned(), Node { claimed: Some(sum), ..node });
        Ok((node, sum))
    }
}

impl Cgroup {
    /// What the cgroup claims of its parent's protection by `memory.low` or `memory.min`: no more than it uses. Zero without
    /// memory controller.
    #[must_use]
    pub fn claim(&self, file: &str) -> Bytes {
        let usage = self.current().unwrap_or_default();
        usage.min(Bytes(self.setting(file).unwrap_or(0)))
    }

    fn setting(&self, file: &str) -> Result<u64> {
        Ok(match self.read(file, parse_limit)? {
            Some(Limit::Bytes(bytes)) => bytes.0,
            Some(Limit::Max) => u64::MAX,
            None => 0,
        })
    }
}

/// A child's effective protection, from its usage and setting, and its parent's usage, effective protection and children's claims.
fn effective((usage, setting): (u64, u64), (parent_usage, afforded, claimed): (u64, u64, u64), recursive: bool) -> u64 {
    let part = |amount: u64, of: u64, whole: u64| {
        let part = u128::from(amount) * u128::from(of) / u128::from(whole.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let own = usage.min(setting);
    if claimed > afforded {
        return part(own, afforded, claimed);
    }
    if recursive && afforded > claimed && parent_usage > claimed && usage > own {
        return own.saturating_add(part(afforded - claimed, usage - own, parent_usage - claimed));
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_is_bounded_by_the_parent_and_shared_by_claims() {
        let check = |child, parent, recursive, expected| {
            assert_eq!(effective(child, parent, recursive), expected, "{child:?} {parent:?} {recursive}");
        };
        // The parent affords all that is claimed.
        check((100, 60), (300, 90, 90), false, 60);
        check((100, u64::MAX), (300, 200, 130), false, 100);
        // It affords nothing, or less than is claimed.
        check((100, 60), (300, 0, 60), false, 0);
        check((100, 60), (300, 45, 90), false, 30);
        // What is not claimed is divided by unprotected memory only with memory_recursiveprot.
        check((100, 0), (300, 100, 0), false, 0);
        check((100, 0), (300, 100, 0), true, 33);
        check((100, 60), (300, 90, 60), true, 65);
        check((100, 60), (60, 90, 60), true, 60);
    }

    #[test]
    fn the_whole_path_counts() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::under(directory.path());
        let put = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sys/fs/cgroup/cgroup.controllers", "memory\n");
        let cgroup = |name: &str, current: u64, low: &str| {
            put(&format!("sys/fs/cgroup{name}/memory.current"), &current.to_string());
            put(&format!("sys/fs/cgroup{name}/memory.low"), low);
            put(&format!("sys/fs/cgroup{name}/memory.min"), "0\n");
        };
        cgroup("/s", 1_000, "0");
        cgroup("/s/db", 400, "300");
        cgroup("/s/web", 600, "max");
        let root = CgroupRoot::probe(&roots).unwrap();
        let of = |name: &str, recursive: bool| {
            let found = ProtectionTree::new(&root, recursive).of(&Cgroup::open(&root, name).unwrap()).unwrap();
            (found.claimed.0, found.effective.0)
        };
        assert_eq!(of("/s/db", false), (300, 0), "the slice affords nothing");
        put("sys/fs/cgroup/s/memory.low", "450\n");
        assert_eq!(of("/s/db", false), (300, 150), "450 for claims of 900");
        assert_eq!(of("/s", false), (450, 450));
        put("sys/fs/cgroup/s/memory.low", "1000\n");
        assert_eq!((of("/s/db", false), of("/s/db", true)), ((300, 300), (300, 400)));
        let mounts = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        put("proc/self/mountinfo", &format!("{mounts}\n"));
        assert!(!is_recursive(&roots).unwrap());
        put("proc/self/mountinfo", &format!("{mounts},memory_recursiveprot\n"));
        assert!(is_recursive(&roots).unwrap());
    }
}
