//! Types of VMs, guest systems, lifetimes and sensitivities of a generated trace.
//!
//! Names and shares are made up. Figures were chosen so that the whole fits what is published ([`super::fit`] shows how well).

use crate::vm::Vm;

/// Families of types: memory per core in GiB, and the share of deployments.
pub(super) const FAMILIES: [Family; 3] = [
    Family { name: "compute", gib_per_core: 2, share: 0.27, untouched: -0.15, sensitive: -0.6 },
    Family { name: "general", gib_per_core: 4, share: 0.50, untouched: 0.0, sensitive: 0.0 },
    Family { name: "memory", gib_per_core: 8, share: 0.23, untouched: 0.2, sensitive: 0.7 },
];

/// Cores of types, and their shares.
pub(super) const SIZES: [(u32, f64); 6] = [(1, 0.28), (2, 0.33), (4, 0.21), (8, 0.12), (16, 0.05), (32, 0.01)];

/// A family of types.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    name: &'static str,
    pub(super) gib_per_core: u64,
    pub(super) share: f64,
    /// How it moves the untouched share, on the scale of log odds.
    pub(super) untouched: f64,
    /// How much likelier, as a logarithm, the most sensitive workload is to use it than one in the middle.
    pub(super) sensitive: f64,
}

/// A type: a family in a size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type {
    pub(super) family: usize,
    pub(super) size: usize,
}

/// All types, family by family.
pub(super) const TYPES: [Type; FAMILIES.len() * SIZES.len()] = {
    let mut types = [Type { family: 0, size: 0 }; FAMILIES.len() * SIZES.len()];
    let mut at = 0;
    while at < types.len() {
        types[at] = Type { family: at / SIZES.len(), size: at % SIZES.len() };
        at += 1;
    }
    types
};

impl Type {
    pub(super) fn name(&self) -> String {
        format!("{}-{}", FAMILIES[self.family].name, SIZES[self.size].0)
    }

    /// Its place in [`TYPES`].
    pub(super) fn number(self) -> Option<u16> {
        u16::try_from(self.family * SIZES.len() + self.size).ok()
    }

    /// Fills in what a VM of it asks for.
    pub(super) fn ask(self, vm: Vm) -> Vm {
        let cores = SIZES[self.size].0;
        let memory_bytes = u64::from(cores) * (FAMILIES[self.family].gib_per_core << 30);
        Vm { cores, memory_bytes, vm_type: self.number(), ..vm }
    }
}

/// A guest system.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestSystem {
    pub(super) name: &'static str,
    pub(super) share: f64,
    pub(super) untouched: f64,
    pub(super) sensitive: f64,
}

/// Guest systems.
pub(super) const GUEST_SYSTEMS: [GuestSystem; 5] = [
    GuestSystem { name: "linux-a", share: 0.32, untouched: 0.1, sensitive: 0.2 },
    GuestSystem { name: "linux-b", share: 0.20, untouched: 0.2, sensitive: 0.4 },
    GuestSystem { name: "linux-c", share: 0.08, untouched: -0.1, sensitive: 0.0 },
    GuestSystem { name: "windows-a", share: 0.28, untouched: -0.2, sensitive: -0.3 },
    GuestSystem { name: "windows-b", share: 0.12, untouched: -0.05, sensitive: -0.2 },
];

/// How long VMs live: share of the workloads, and median in hours with the standard deviation of its logarithm.
pub(super) const LIVES: [(f64, (f64, f64)); 3] = [(0.50, (0.4, 1.0)), (0.30, (8.0, 1.0)), (0.20, (360.0, 0.8))];

/// Slowdowns by rank of sensitivity, from the least to the most sensitive: 004 section 3.3 gives the points in the middle for
/// its 158 workloads; the last is the most that section 6.3 tells of, and for 222 % a guess.
pub(super) const SLOWDOWN_64NS: [(f64, f64); 5] = [(0.0, 0.0), (0.26, 0.01), (0.43, 0.05), (0.79, 0.25), (1.0, 0.50)];
/// The same at 222 % of local latency.
pub(super) const SLOWDOWN_140NS: [(f64, f64); 5] = [(0.0, 0.0), (0.23, 0.01), (0.37, 0.05), (0.625, 0.25), (1.0, 0.85)];

/// The value of a line through points at `x`.
pub(super) fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let after = points.partition_point(|&(at, _)| at <= x).clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[after - 1], points[after]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}
