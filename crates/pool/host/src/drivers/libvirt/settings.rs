//! Settings of the libvirt driver.

use std::path::PathBuf;

use kernel::{Roots, numa};
use settings::{Document, Group as _, Invalid, Unit};

settings::tables! {
    /// Guests are started by libvirt. Excludes `[qemu]`. A pool whose memory is one file for each slice requires
    /// `[qemu]`: a domain of libvirt cannot name the file of a guest's memory.
    pub struct Settings = "libvirt", Optional {
        program: PathBuf = Unit::Program, "virsh",
            "The program `virsh`.";
        uri: String = Unit::Text, "qemu:///system",
            "The connection URI.";
        pids: PathBuf = Unit::RelativePath, "/run/libvirt/qemu",
            "The directory of libvirt's pid files.";
        pool_node: u32 = Unit::Count, required "1" in "0" ..= "1023",
            "The NUMA node of this host that is the pool.";
        local_nodes: Option<String> = Unit::Text, "",
            "The NUMA nodes of the guests' other memory, such as `0-1`. The host's kernel chooses if it is not set.";
        distance: u8 = Unit::Count, "28" in "11" ..= "254",
            "The NUMA distance between the pool node and node 0 in the guest. The distance of a node to itself is 10.";
        balloon: bool = Unit::Bool, "true",
            "Whether guests get a balloon device, by which they report their memory use. The balloon is never inflated.";
    }
}

impl Settings {
    /// Reads the table, and checks that the pool's node is not one of the local nodes.
    pub(in crate::drivers) fn checked(document: &mut Document) -> Self {
        let section = document.section(&Self::TABLE);
        let settings = Self::read(&section);
        let mut refuse = |message: &str, remedy: &str| document.report(section.place("local_nodes"), Invalid::new(message, remedy));
        match settings.local_nodes.as_deref().map(numa::parse_list) {
            Some(Ok(nodes)) if nodes.contains(&settings.pool_node) => {
                refuse("the pool's node is one of them", "remove it: local memory would come from the pool");
            }
            Some(Ok(nodes)) if !nodes.is_empty() => {}
            Some(_) => refuse("not a list of nodes", "write a list such as \"0-1\""),
            None => {}
        }
        settings
    }

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
    /// Settings for tests: the defaults, with node 1 as the pool.
    pub(super) fn example() -> Self {
        settings::Group::defaults()
    }
}
