//! The slow memory node of this machine: its number, its latency, and the node to which its memory is promoted.

use config::Slow;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::numa::{self, Node};
use kernel::{Error, Result, Roots, move_pages};
use policy::slowdown::latency::{self, Measured};
use serde::Serialize;
use units::{Bytes, Pages};

use crate::undo::UndoLog;

/// One part in this many of the slow node stays free: the kernel keeps reserves there, and reclaims when a node is full.
const ROOM_KEPT_PARTS: u64 = 50;

/// The source of a latency that was measured.
pub const MEASUREMENT: &str = "measurement";

/// A node that loads and stores access directly, with a higher latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlowNode {
    /// Its number.
    pub node: u32,
    /// The node to which its memory is promoted: the nearest with CPUs.
    pub home: u32,
    /// Latency of an access from which budgets are derived, in nanoseconds.
    pub latency_ns: u64,
    /// The source of that latency: `slow.latency`, `HMAT` or [`MEASUREMENT`].
    pub latency_from: &'static str,
    /// The measured latency, smoothed; `None` if it is not measured.
    pub measured_ns: Option<u64>,
    /// The same of the node to which its memory is promoted. Nothing follows from it.
    pub home_measured_ns: Option<u64>,
    /// Its memory.
    pub total_bytes: Bytes,
    /// Its free memory.
    pub free_bytes: Bytes,
}

impl SlowNode {
    /// Reads the slow node.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with a remedy if there is none, or if its latency is unknown.
    pub fn find(roots: &Roots, slow: &Slow) -> Result<Self> {
        choose(&numa::nodes(roots)?, slow)
    }

    /// Takes in what was measured of this node and of the one to which its memory is promoted.
    pub fn take_measured(&mut self, slow: &Measured, home: &Measured) {
        let (latency_ns, is_measured) = latency::in_effect(self.latency_ns, slow);
        self.latency_ns = latency_ns;
        if is_measured {
            self.latency_from = MEASUREMENT;
        }
        (self.measured_ns, self.home_measured_ns) = (slow.ns(), home.ns());
    }

    /// Bytes that may be placed there.
    #[must_use]
    pub fn room(&self) -> Bytes {
        self.free_bytes - Bytes(self.total_bytes.0 / ROOM_KEPT_PARTS)
    }
}

fn choose(nodes: &[Node], slow: &Slow) -> Result<SlowNode> {
    let found = match slow.node.as_str() {
        "auto" | "" => numa::slow_nodes(nodes).first().copied().ok_or_else(|| {
            unsupported("no memory node without processors", "name the slow one by slow.node, or add CXL memory as a node")
        })?,
        number => nodes.iter().find(|node| node.id.to_string() == number).ok_or_else(|| {
            unsupported(format!("slow.node: there is no memory node {number}"), "see `thermocline doctor` for those there are")
        })?,
    };
    let home = numa::fast_node(nodes, found)
        .ok_or_else(|| unsupported("no memory node with processors beside the slow one", "name another one by slow.node"))?;
    let firmware = found.read_latency_ns();
    let (latency_ns, latency_from) = match (slow.latency_ns(), firmware) {
        (Some(latency_ns), _) => (latency_ns, "slow.latency"),
        (None, Some(latency_ns)) => (latency_ns, "HMAT"),
        (None, None) => {
            return Err(unsupported(
                format!("the latency of memory node {} is unknown: the firmware has no HMAT entry for it", found.id),
                "set slow.latency to its latency, such as \"400ns\"",
            ));
        }
    };
    let (total_bytes, free_bytes) = (found.total, found.free);
    let (measured_ns, home_measured_ns) = (None, None);
    Ok(SlowNode { node: found.id, home: home.id, latency_ns, latency_from, measured_ns, home_measured_ns, total_bytes, free_bytes })
}

/// Promotes what the agent placed in the slow node: of one job if `only` names it, of all jobs otherwise. Returns what was done, in
/// words.
pub fn promote_placed(cgroups: &CgroupRoot, undo: &mut UndoLog, only: Option<&str>) -> Vec<String> {
    let Some(slow) = undo.slow_jobs().cloned() else { return Vec::new() };
    let mut done = Vec::new();
    for (path, id) in slow.jobs.iter().filter(|(path, _)| only.is_none_or(|only| only == path.as_str())) {
        // A recreated directory of this name is another job, whose memory the agent has not placed.
        let Some(cgroup) = Cgroup::open(cgroups, path).ok().filter(|cgroup| cgroup.id() == *id) else {
            undo.remove_slow_job(path);
            continue;
        };
        match promote_job(&cgroup, slow.node, slow.home) {
            Ok(left) => {
                let left = match left {
                    Pages::ZERO => String::new(),
                    left => format!("; {} could not be moved", left.to_bytes(kernel::page_size())),
                };
                done.push(format!("promoted what {path} had in memory node {} to node {}{left}", slow.node, slow.home));
                undo.remove_slow_job(path);
            }
            Err(error) if error.is_gone() => undo.remove_slow_job(path),
            Err(error) => done.push(format!("left what {path} has in memory node {}: {error}", slow.node)),
        }
    }
    done
}

/// Returns the pages that could not be moved.
fn promote_job(cgroup: &Cgroup, node: u32, home: u32) -> Result<Pages> {
    let mut left = Pages::ZERO;
    for pid in cgroup.procs(crate::PROCESSES_MAX)? {
        match move_pages::all(pid, node, home) {
            Ok(pages) => left += Pages(pages),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}

fn unsupported(what: impl Into<String>, remedy: &str) -> Error {
    Error::Unsupported { what: what.into(), remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use config::Config;
    use kernel::numa::Access;

    use super::*;

    fn node(id: u32, cpus: &[u32], distances: &[(u32, u32)], read_latency_ns: Option<u64>) -> Node {
        let access = read_latency_ns.map(|latency| Access { read_latency_ns: Some(latency), ..Access::default() });
        Node {
            id,
            cpus: cpus.to_vec(),
            total: Bytes::mib(100),
            free: Bytes::mib(50),
            files: Bytes::ZERO,
            distances: distances.to_vec(),
            access,
        }
    }

    fn nodes(latency_ns: Option<u64>) -> Vec<Node> {
        vec![
            node(0, &[0], &[(0, 10), (1, 20), (2, 30)], Some(100)),
            node(1, &[1], &[(0, 20), (1, 10), (2, 15)], Some(100)),
            node(2, &[], &[(0, 30), (1, 15), (2, 10)], latency_ns),
        ]
    }

    fn check(nodes: &[Node], settings: &[(&str, &str)], want: Result<(u32, u32, u64, &str), &str>) {
        let text: String = settings.iter().map(|(name, value)| format!("{name} = \"{value}\"\n")).collect();
        let config = Config::from_str("test.toml", &format!("[slow]\n{text}")).unwrap();
        match (choose(nodes, &config.slow), want) {
            (Ok(found), Ok(want)) => {
                assert_eq!((found.node, found.home, found.latency_ns, found.latency_from), want);
                assert_eq!(found.room(), Bytes::mib(48), "2 % of the node are kept free");
            }
            (Err(error), Err(want)) => assert!(error.to_string().contains(want), "{error}"),
            (found, want) => panic!("{found:?} instead of {want:?}"),
        }
    }

    #[test]
    fn a_measured_latency_raises_the_one_in_effect_and_never_lowers_it() {
        let config = Config::from_str("test.toml", "").unwrap();
        for (measured, expected) in
            [(&[][..], (400, "HMAT", None)), (&[90], (400, "HMAT", Some(90))), (&[650], (650, MEASUREMENT, Some(650)))]
        {
            let mut found = choose(&nodes(Some(400)), &config.slow).unwrap();
            let mut slow = Measured::default();
            let mut home = Measured::default();
            measured.iter().for_each(|ns| slow.take(*ns));
            home.take(700);
            found.take_measured(&slow, &home);
            assert_eq!((found.latency_ns, found.latency_from, found.measured_ns), expected);
            assert_eq!(found.home_measured_ns, Some(700), "reported, and without an effect");
        }
    }

    #[test]
    fn the_slow_node_is_found_or_its_absence_explained() {
        check(&nodes(Some(400)), &[], Ok((2, 1, 400, "HMAT")));
        check(&nodes(Some(400)), &[("latency", "1us")], Ok((2, 1, 1000, "slow.latency")));
        check(&nodes(None), &[("latency", "250ns")], Ok((2, 1, 250, "slow.latency")));
        check(&nodes(None), &[], Err("set slow.latency"));
        check(&nodes(Some(400)), &[("node", "0")], Ok((0, 1, 100, "HMAT")));
        check(&nodes(Some(400)), &[("node", "7")], Err("no memory node 7"));
        check(&nodes(Some(400))[..2], &[], Err("no memory node without processors"));
        check(&nodes(Some(400))[2..], &[], Err("no memory node with processors"));
    }
}
