//! Sparse pods: small devices, each connected to a few servers, in overlapping sets.
//!
//! In a pool behind one controller or a switch, all servers reach all memory. In a sparse pod a device has few ports, each for one
//! server, and a server has ports to several devices, each with other servers (Octopus abstract). Large pods need no switch then,
//! and an access has the latency of a small controller; but a server cannot get memory of every device.

use serde::Serialize;
use thiserror::Error;

mod design;

/// How servers and devices of a sparse pod are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// Ports of a device: the most servers that reach it.
    pub ports: u16,
    /// Devices that a server reaches.
    pub per_server: u16,
    /// Devices that one VM has memory of, at most. With fewer, the failure of a device affects fewer VMs, and a VM may not get
    /// memory that its server's devices have in sum.
    pub per_vm: u16,
}

/// A pool cannot be built as a sparse pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Impossible {
    /// Some ports of a device would have no server.
    #[error("a device with {ports} ports needs as many servers, and the pod has {servers}; give a larger pool size or fewer ports")]
    FewServers {
        /// Servers of the pool.
        servers: u32,
        /// Ports of a device.
        ports: u16,
    },
    /// The devices are no whole number.
    #[error(
        "{servers} servers with {per_server} devices each need {} ports, which is no multiple of the {ports} ports of a device; \
         change the pool size, `ports` or `per-server`", servers * u32::from(*per_server)
    )]
    PortsLeft {
        /// Servers of the pool.
        servers: u32,
        /// Devices that a server reaches.
        per_server: u16,
        /// Ports of a device.
        ports: u16,
    },
}

/// How a pod's servers overlap in their devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// Servers of the pod.
    pub servers: u32,
    /// Devices of the pod.
    pub devices: u32,
    /// Pairs of servers.
    pub pairs: u32,
    /// Pairs that share a device.
    pub sharing_pairs: u32,
    /// Pairs that share more than one.
    pub sharing_several_pairs: u32,
}

impl Pod {
    /// Returns whether a pod of so many servers uses all ports of its devices. Without that a pod can be built as well; only the
    /// last one of a cluster should be.
    ///
    /// # Errors
    /// [`Impossible`]: there are too few servers, or the devices are no whole number.
    pub fn check(&self, servers: u32) -> Result<(), Impossible> {
        let Self { ports, per_server, .. } = *self;
        if servers < u32::from(ports) {
            return Err(Impossible::FewServers { servers, ports });
        }
        if !(servers * u32::from(per_server)).is_multiple_of(u32::from(ports)) {
            return Err(Impossible::PortsLeft { servers, per_server, ports });
        }
        Ok(())
    }

    /// Returns the servers of each device of a pod, counted from 0, in ascending order.
    ///
    /// Every server has `per_server` devices, and every device `ports` servers at most. A cyclic design is used if one is found: then
    /// no two servers share more than one device, and every two share just one if the pod has `1 + per_server * (ports - 1)` servers.
    /// Otherwise servers are connected at random, to the devices with most free ports. The same seed gives the same design.
    #[must_use]
    pub fn design(&self, servers: u32, seed: u64) -> Vec<Vec<u32>> {
        design::cyclic(*self, servers, seed).unwrap_or_else(|| design::balanced(*self, servers, seed))
    }

    /// Returns how the servers of a pod overlap.
    #[must_use]
    pub fn overlap(&self, servers: u32, seed: u64) -> Overlap {
        let design = self.design(servers, seed);
        let mut shared = vec![0u32; (servers * servers) as usize];
        for device in &design {
            for (at, &one) in device.iter().enumerate() {
                for &other in &device[at + 1..] {
                    shared[(one * servers + other) as usize] += 1;
                }
            }
        }
        let count = |least: u32| u32::try_from(shared.iter().filter(|&&devices| devices >= least).count()).unwrap_or(u32::MAX);
        Overlap {
            servers,
            devices: u32::try_from(design.len()).unwrap_or(u32::MAX),
            pairs: servers * servers.saturating_sub(1) / 2,
            sharing_pairs: count(1),
            sharing_several_pairs: count(2),
        }
    }
}

#[cfg(test)]
mod tests;
