//! Designs of sparse pods: which server is connected to which device.

use fastrand::Rng;

use super::Pod;

/// Steps after which the search for a cyclic design ends: about 10 ms.
const STEPS_MAX: u32 = 200_000;

/// Returns a design in which no two servers share more than one device, or `None` if none is found.
///
/// It is developed from base blocks, as cyclic difference families are: the servers of device `i` of a block are those of the block
/// plus `i`, modulo the number of servers. If all differences within the blocks are distinct, two servers share a device at most once,
/// because a pair's difference and its first server determine the device. A block gives each server as many devices as a device has
/// ports. The differences are drawn at random: with small ones, neighbours would share devices with neighbours only, and these are
/// filled at the same time by policies that prefer the first server.
pub(super) fn cyclic(pod: Pod, servers: u32, seed: u64) -> Option<Vec<Vec<u32>>> {
    let (ports, per_server) = (u32::from(pod.ports.max(1)), u32::from(pod.per_server));
    if ports < 2 || per_server % ports != 0 || per_server * (ports - 1) >= servers {
        return None;
    }
    let mut order: Vec<u32> = (1..servers).collect();
    Rng::with_seed(seed).shuffle(&mut order);
    let (ports, blocks) = (ports as usize, (per_server / ports) as usize);
    let mut search =
        Search { servers, ports, blocks, order, used: vec![false; servers as usize], found: Vec::new(), steps_left: STEPS_MAX };
    if !search.begin() {
        return None;
    }
    let devices = search.found.iter().flat_map(|block| {
        (0..servers).map(move |shift| {
            let mut device: Vec<u32> = block.iter().map(|server| (server + shift) % servers).collect();
            device.sort_unstable();
            device
        })
    });
    Some(devices.collect())
}

/// A search for base blocks with distinct differences, by backtracking.
struct Search {
    servers: u32,
    /// Servers of a block.
    ports: usize,
    /// Number of blocks.
    blocks: usize,
    /// The servers that may be added to a block, in the order in which they are tried.
    order: Vec<u32>,
    /// Whether a difference occurs.
    used: Vec<bool>,
    /// The blocks so far; the last one may be incomplete.
    found: Vec<Vec<u32>>,
    steps_left: u32,
}

impl Search {
    /// Begins the next block, or returns whether all are complete.
    ///
    /// It has the first difference of the order that does not occur yet. If all must occur, some block has it; trying only that one
    /// makes the search short where a design leaves no difference out.
    fn begin(&mut self) -> bool {
        if self.found.len() == self.blocks {
            return true;
        }
        self.found.push(vec![0]);
        let first = self.order.iter().find_map(|&server| Some((server, self.differences(server)?)));
        if let Some((server, differences)) = first
            && self.with(server, &differences, 0)
        {
            return true;
        }
        self.found.pop();
        false
    }

    /// Completes the last block with servers from a position of the order on, and then the others. Returns whether it succeeded; if not,
    /// nothing has changed.
    fn complete(&mut self, from: usize) -> bool {
        if self.last().len() == self.ports {
            return self.begin();
        }
        for at in from..self.order.len() {
            if self.steps_left == 0 {
                return false;
            }
            self.steps_left -= 1;
            let server = self.order[at];
            let Some(differences) = self.differences(server) else { continue };
            if self.with(server, &differences, at + 1) {
                return true;
            }
        }
        false
    }

    /// Completes the blocks with a server in the last one. Returns whether it succeeded; if not, nothing has changed.
    fn with(&mut self, server: u32, differences: &[u32], from: usize) -> bool {
        self.mark(differences, true);
        if let Some(block) = self.found.last_mut() {
            block.push(server);
        }
        if self.complete(from) {
            return true;
        }
        if let Some(block) = self.found.last_mut() {
            block.pop();
        }
        self.mark(differences, false);
        false
    }

    fn last(&self) -> &[u32] {
        self.found.last().map_or(&[], Vec::as_slice)
    }

    /// Returns the differences, in both directions, of a server to the last block; `None` if one occurs already.
    fn differences(&self, server: u32) -> Option<Vec<u32>> {
        let mut new = Vec::with_capacity(2 * self.ports);
        for &of in self.last() {
            let forward = (server + self.servers - of) % self.servers;
            for difference in [forward, (self.servers - forward) % self.servers] {
                if difference == 0 || self.used[difference as usize] || new.contains(&difference) {
                    return None;
                }
                new.push(difference);
            }
        }
        Some(new)
    }

    fn mark(&mut self, differences: &[u32], used: bool) {
        for &difference in differences {
            self.used[difference as usize] = used;
        }
    }
}

/// Returns a random design that uses all devices equally. Devices are as few as the ports permit; some ports of the last servers stay
/// free if the pod's ports are no multiple of a device's.
///
/// Each server in turn gets the devices with most free ports, so that the free ports of two devices never differ by more than one, and
/// the last servers find enough devices. Among those, it gets the ones that it shares with the fewest servers which it meets already.
pub(super) fn balanced(pod: Pod, servers: u32, seed: u64) -> Vec<Vec<u32>> {
    let (ports, per_server) = (u32::from(pod.ports.max(1)), u32::from(pod.per_server));
    let count = (servers * per_server).div_ceil(ports).max(per_server);
    let mut devices: Vec<Vec<u32>> = vec![Vec::new(); count as usize];
    let mut random = Rng::with_seed(seed);
    let mut order: Vec<usize> = (0..devices.len()).collect();
    let mut met = vec![false; servers as usize];
    for server in 0..servers {
        random.shuffle(&mut order);
        met.fill(false);
        for _ in 0..per_server {
            let free = order.iter().copied().filter(|&at| devices[at].last() != Some(&server));
            let known = |at: usize| devices[at].iter().filter(|&&other| met[other as usize]).count();
            let Some(best) = free.min_by_key(|&at| (devices[at].len(), known(at))) else { break };
            devices[best].iter().for_each(|&other| met[other as usize] = true);
            devices[best].push(server);
        }
    }
    devices
}
