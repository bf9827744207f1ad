//! Settings of the libvirt driver.

use std::path::PathBuf;

use kernel::{Roots, numa};

/// How libvirt is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The `virsh` program.
    pub program: PathBuf,
    /// Connection URI.
    pub uri: String,
    /// Directory of libvirt's pid files.
    pub pids: PathBuf,
    /// NUMA node of this host that is the pool.
    pub pool_node: u32,
    /// NUMA nodes of the guests' other memory, such as `0-1`. `None`: the host's kernel chooses.
    pub local_nodes: Option<String>,
    /// NUMA distance between the pool node and node 0 in the guest. A node's distance to itself is 10.
    pub distance: u8,
    /// Whether guests get a balloon device, by which they report their memory use. The balloon is never inflated.
    pub balloon: bool,
}

impl Settings {
    /// Checks that this machine has the pool node.
    ///
    /// # Errors
    /// The node that is missing and those that exist, or that nodes cannot be listed.
    pub fn check(&self, roots: &Roots) -> Result<(), String> {
        let nodes = numa::nodes(roots).map_err(|error| error.to_string())?;
        let known: Vec<_> = nodes.into_iter().map(|node| node.id).collect();
        let node = self.pool_node;
        if known.contains(&node) {
            return Ok(());
        }
        Err(format!("libvirt.pool_node: this host has no node {node}; it has {known:?}"))
    }
}

#[cfg(test)]
impl Settings {
    /// Settings for tests, with the defaults of the host's configuration.
    pub(super) fn example() -> Self {
        Self {
            program: "virsh".into(),
            uri: "qemu:///system".to_owned(),
            pids: "/run/libvirt/qemu".into(),
            pool_node: 1,
            local_nodes: None,
            distance: 28,
            balloon: true,
        }
    }
}
