//! The servers of a cluster, and which of them takes a VM.
//!
//! # Rule
//! Best fit: of the servers that have room for a VM's cores and memory, the one with the fewest free cores; of those, the one
//! with the least free DRAM; of those, the first. A VM lies on one server as a whole. Servers are kept in order of what is free, so that
//! a choice takes a few steps however many there are.

use std::collections::BTreeSet;

/// What a VM takes, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    pub(super) server: usize,
    pub(super) cores: u32,
    pub(super) bytes: u64,
}

/// Why a VM finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No server has enough free cores.
    Cores,
    /// Some have, and none of those has enough free DRAM.
    Memory,
}

/// The servers of a cluster, all alike.
#[derive(Clone, Debug)]
pub struct Servers {
    count: usize,
    cores: u32,
    dram_bytes: u64,
    /// Free cores and free DRAM of each.
    free: Vec<(u32, u64)>,
    /// Servers by free cores: free DRAM, and which.
    by_cores: Vec<BTreeSet<(u64, usize)>>,
    free_cores: u64,
}

impl Servers {
    /// So many empty servers with so many cores and so much DRAM each.
    #[must_use]
    pub fn new(count: usize, cores: u32, dram_bytes: u64) -> Self {
        let places = usize::try_from(cores).unwrap_or(0) + 1;
        let mut by_cores = vec![BTreeSet::new(); places];
        by_cores[places - 1].extend((0..count).map(|server| (dram_bytes, server)));
        let free_cores = count as u64 * u64::from(cores);
        Self { count, cores, dram_bytes, free: vec![(cores, dram_bytes); count], by_cores, free_cores }
    }

    /// Places a VM.
    ///
    /// # Errors
    /// Where it fits nowhere.
    pub fn place(&mut self, cores: u32, bytes: u64) -> Result<Placed, Refused> {
        let least = usize::try_from(cores).unwrap_or(usize::MAX);
        let candidates = self.by_cores.get(least..).unwrap_or_default();
        let best = candidates.iter().find_map(|servers| servers.range((bytes, 0)..).next());
        let Some(&(_, server)) = best else {
            let any = candidates.iter().any(|servers| !servers.is_empty());
            return Err(if any { Refused::Memory } else { Refused::Cores });
        };
        let (free_cores, free_bytes) = self.free[server];
        self.set(server, (free_cores - cores, free_bytes - bytes));
        self.free_cores -= u64::from(cores);
        Ok(Placed { server, cores, bytes })
    }

    /// A VM leaves.
    pub fn free(&mut self, placed: Placed) {
        let (cores, bytes) = self.free[placed.server];
        self.set(placed.server, (cores + placed.cores, bytes + placed.bytes));
        self.free_cores += u64::from(placed.cores);
    }

    fn set(&mut self, server: usize, now: (u32, u64)) {
        let place = |cores: u32| usize::try_from(cores).unwrap_or(usize::MAX);
        let was = self.free[server];
        self.by_cores[place(was.0)].remove(&(was.1, server));
        self.by_cores[place(now.0)].insert((now.1, server));
        self.free[server] = now;
    }

    /// The share of all cores that are rented.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn scheduled_ratio(&self) -> f64 {
        let all = self.count as u64 * u64::from(self.cores);
        1.0 - self.free_cores as f64 / all.max(1) as f64
    }

    /// The share of all DRAM that is stranded, where a core rents at most so many bytes.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn stranded_ratio(&self, most_bytes_per_core: u64) -> f64 {
        let beyond = |&(cores, bytes): &(u32, u64)| bytes.saturating_sub(u64::from(cores).saturating_mul(most_bytes_per_core)) as f64;
        let stranded: f64 = self.free.iter().map(beyond).sum();
        let all = self.count as f64 * self.dram_bytes as f64;
        if all > 0.0 { stranded / all } else { 0.0 }
    }
}
