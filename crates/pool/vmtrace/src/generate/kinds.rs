//! Types of VMs, guest systems, lifetimes and sensitivities of a generated trace.
//!
//! Names and shares are invented. The values are chosen so that the trace fits the published figures (`fit` shows how well).

use units::Bytes;

use crate::vm::Vm;

/// Probability that a deployment continues with another VM, after each VM.
pub(super) const ANOTHER: f64 = 0.5;

/// Families of types: memory per core in GiB, and share of deployments.
pub(super) const FAMILIES: [Family; 3] = [
    Family { name: "compute", gib_per_core: 2, share: 0.27, untouched: -0.15, sensitive: -0.6 },
    Family { name: "general", gib_per_core: 4, share: 0.50, untouched: 0.0, sensitive: 0.0 },
    Family { name: "memory", gib_per_core: 8, share: 0.23, untouched: 0.2, sensitive: 0.7 },
];

/// Cores of a type, and the share of types with that size.
pub(super) const SIZES: [(u32, f64); 6] = [(1, 0.28), (2, 0.33), (4, 0.21), (8, 0.12), (16, 0.05), (32, 0.01)];

/// A family of types.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    name: &'static str,
    pub(super) gib_per_core: u64,
    pub(super) share: f64,
    /// Shift of the untouched share, in log odds.
    pub(super) untouched: f64,
    /// Logarithm of how much more likely the most sensitive workload uses this family than a median one.
    pub(super) sensitive: f64,
}

/// A type: a family and a size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type {
    pub(super) family: usize,
    pub(super) size: usize,
}

/// All types, ordered by family.
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

    /// Returns its index in [`TYPES`].
    pub(super) fn number(self) -> Option<u16> {
        u16::try_from(self.family * SIZES.len() + self.size).ok()
    }

    /// Sets the cores, memory and type of a VM.
    pub(super) fn request(self, vm: Vm) -> Vm {
        let cores = SIZES[self.size].0;
        let memory_bytes = Bytes::gib(u64::from(cores) * FAMILIES[self.family].gib_per_core);
        Vm { cores, memory_bytes, vm_type: self.number(), ..vm }
    }
}

/// A guest operating system. Fields are as for [`Family`].
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

/// Lifetimes: share of the workloads, median in hours, and standard deviation of the logarithm.
pub(super) const LIVES: [(f64, (f64, f64)); 3] = [(0.50, (0.4, 1.0)), (0.30, (8.0, 1.0)), (0.20, (360.0, 0.8))];

/// Slowdowns by rank of sensitivity, from the least to the most sensitive workload. The inner points are those of the 158
/// workloads of (Pond section 3.3). The last is the highest slowdown of (Pond section 6.3); for 222 % it is an assumption.
pub(super) const SLOWDOWN_64NS: [(f64, f64); 5] = [(0.0, 0.0), (0.26, 0.01), (0.43, 0.05), (0.79, 0.25), (1.0, 0.50)];
/// Slowdowns at 222 % of local latency.
pub(super) const SLOWDOWN_140NS: [(f64, f64); 5] = [(0.0, 0.0), (0.23, 0.01), (0.37, 0.05), (0.625, 0.25), (1.0, 0.85)];

/// Interpolates linearly between points at `x`.
pub(super) fn interpolate(points: &[(f64, f64)], x: f64) -> f64 {
    let after = points.partition_point(|&(at, _)| at <= x).clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[after - 1], points[after]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}
