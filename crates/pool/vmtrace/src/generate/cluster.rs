//! One cluster: the deployments in it and their times.

use std::collections::VecDeque;

use fastrand::Rng;

use super::customer::{self, odds};
use super::kinds::{ANOTHER, FAMILIES, GUEST_SYSTEMS, LIVES, SIZES, SLOWDOWN_64NS, SLOWDOWN_140NS, Type, interpolate};
use super::random::{Drift, log_normal, normal, pick, share, stream};
use super::settings::Settings;
use crate::vm::Vm;

/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// Days before the trace begins in which VMs arrive, so that the trace begins with running VMs.
const BEFORE_DAYS: f64 = 60.0;
const DEPLOYMENT_MAX: u32 = 64;
/// Drift of the demand for cores: standard deviation of its logarithm, and correlation time in days.
const DEMAND: (f64, f64) = (0.45, 6.0);
/// Drift of the mix of families: standard deviation of its logarithm, and correlation time in days.
const MIX: (f64, f64) = (0.40, 12.0);
/// Permanent differences between clusters in size, mix and untouched memory, and between regions in untouched memory:
/// standard deviations of logarithms, or of log odds for untouched memory.
const SIZE: f64 = 0.3;
const LASTING_MIX: f64 = 0.35;
const LASTING_UNTOUCHED: f64 = 0.33;
const REGION_UNTOUCHED: f64 = 0.33;
/// Relative amplitude of the daily rhythm of arrivals.
const DIURNAL: f64 = 0.35;
/// Differences between VMs of one workload: standard deviation of the log odds of the untouched share.
pub(super) const WITHIN: f64 = 0.55;
/// Differences between VMs of one workload: standard deviation of the sensitivity's rank.
const RANK_NOISE: f64 = 0.03;
/// Share of deployments that use the workload's most frequent type.
const USUAL: f64 = 0.85;

/// A VM with the expected value of its untouched share, the best possible prediction before its own draw.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) vm: Vm,
    /// Median of the log odds of its untouched share; `None` if it touches all memory.
    pub(super) expected: Option<f64>,
}

/// The state of a cluster at one time.
#[derive(Debug)]
pub(super) struct Cluster {
    seed: u64,
    number: u32,
    region: u32,
    regions: u32,
    regulars: f64,
    random: Rng,
    /// Mean number of deployments per day.
    rate: f64,
    day: f64,
    demand: Drift,
    mix: [Drift; FAMILIES.len()],
    lasting_mix: [f64; FAMILIES.len()],
    untouched: f64,
    /// VMs of the current deployment that have not been returned.
    deployed: VecDeque<Drawn>,
}

/// Creates all clusters.
pub(super) fn all(settings: &Settings) -> Vec<Cluster> {
    let mut clusters: Vec<_> = (0..settings.clusters).map(|number| Cluster::new(settings, number)).collect();
    let sizes: f64 = clusters.iter().map(|cluster| cluster.rate).sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let per_day = settings.vms as f64 / f64::from(settings.days) * (1.0 - ANOTHER);
    for cluster in &mut clusters {
        cluster.rate *= per_day / sizes;
    }
    clusters
}

impl Cluster {
    fn new(settings: &Settings, number: u32) -> Self {
        let mut random = stream(settings.seed, u64::from(number));
        let region = number % settings.regions();
        let of_region = &mut stream(settings.seed ^ 0x7265_6769_6f6e, u64::from(region));
        Self {
            seed: settings.seed,
            number,
            region,
            regions: settings.regions(),
            regulars: customer::regulars(settings.vms, settings.regions()),
            // Relative to the other clusters; `all` scales it.
            rate: log_normal(&mut random, (1.0, SIZE)),
            day: -BEFORE_DAYS,
            demand: Drift::new(DEMAND.0, DEMAND.1, &mut random),
            mix: std::array::from_fn(|_| Drift::new(MIX.0, MIX.1, &mut random)),
            lasting_mix: std::array::from_fn(|_| LASTING_MIX * normal(&mut random)),
            untouched: LASTING_UNTOUCHED * normal(&mut random) + REGION_UNTOUCHED * normal(of_region),
            deployed: VecDeque::new(),
            random,
        }
    }

    /// Returns the next VM that runs at or after second 0, or `None` after the second `ends`.
    pub(super) fn next(&mut self, ends: i64) -> Option<Drawn> {
        loop {
            while let Some(mut drawn) = self.deployed.pop_front() {
                if drawn.vm.arrival > ends {
                    return None;
                }
                if drawn.vm.departure.is_some_and(|departure| departure < 0) {
                    continue;
                }
                drawn.vm.departure = drawn.vm.departure.filter(|departure| *departure <= ends);
                return Some(drawn);
            }
            #[expect(clippy::cast_precision_loss, reason = "days of a few years")]
            if self.day * DAY > ends as f64 {
                return None;
            }
            self.deploy();
        }
    }

    /// Advances to the next deployment, or by one day if none occurs within it.
    fn deploy(&mut self) {
        let rhythm = 1.0 + DIURNAL * libm::cos(std::f64::consts::TAU * (self.day - 0.6));
        let rate = self.rate * rhythm * libm::exp(self.demand.value - DEMAND.0 * DEMAND.0 / 2.0);
        let wait = -libm::log(1.0 - self.random.f64()) / rate;
        // The rate changes after a day. Arrivals are memoryless, so the remaining wait is drawn again with the new rate.
        let elapsed = wait.min(1.0);
        self.day += elapsed;
        self.demand.advance(elapsed, &mut self.random);
        self.mix.iter_mut().for_each(|mix| mix.advance(elapsed, &mut self.random));
        if wait > 1.0 {
            return;
        }
        let workload = customer::next(self.seed, (self.region, self.regions), self.regulars, &mut self.random);
        let weight = |(family, of): (usize, &super::kinds::Family)| {
            of.share * odds(of.sensitive, workload.rank) * libm::exp(self.mix[family].value + self.lasting_mix[family])
        };
        let usual = self.random.f64() < USUAL;
        // A workload keeps its position among the families. When their weights drift, workloads at a boundary change family.
        let place = if usual { workload.family } else { self.random.f64() };
        let family = pick(FAMILIES.iter().enumerate().map(weight), place);
        let size = if usual { workload.size } else { pick(SIZES.iter().map(|(_, share)| *share), self.random.f64()) };
        let expected = workload
            .untouched
            .map(|middle| middle + self.untouched + FAMILIES[family].untouched + GUEST_SYSTEMS[workload.guest_os].untouched);
        #[expect(clippy::cast_possible_truncation, reason = "days of a few years")]
        let arrival = libm::floor(self.day * DAY) as i64;
        let known = Vm {
            arrival,
            cluster: self.number,
            customer: Some(workload.customer),
            guest_os: u16::try_from(workload.guest_os).ok(),
            location: u16::try_from(self.region).ok(),
            ..Type { family, size }.request(Vm::default())
        };
        for _ in 0..DEPLOYMENT_MAX {
            let vm = self.complete(known.clone(), expected, &workload);
            self.deployed.push_back(Drawn { vm, expected });
            if self.random.f64() >= ANOTHER {
                break;
            }
        }
    }

    /// Completes a VM: its lifetime, its untouched memory and its slowdowns.
    fn complete(&mut self, vm: Vm, expected: Option<f64>, workload: &customer::Workload) -> Vm {
        let random = &mut self.random;
        #[expect(clippy::cast_possible_truncation, reason = "at most a few years")]
        let seconds = (log_normal(random, LIVES[workload.life].1) * 3_600.0).clamp(1.0, 1e8) as i64;
        // Reflected at both ends, so that ranks stay uniformly distributed.
        let moved = (workload.rank + RANK_NOISE * normal(random)).abs();
        let rank = if moved > 1.0 { 2.0 - moved } else { moved }.clamp(0.0, 1.0);
        let untouched = expected.map_or(0.0, |middle| share(middle + WITHIN * normal(random)));
        Vm {
            departure: Some(vm.arrival + seconds),
            untouched_ratio: Some(to_ppm(untouched)),
            slowdown_64ns: Some(to_ppm(interpolate(&SLOWDOWN_64NS, rank))),
            slowdown_140ns: Some(to_ppm(interpolate(&SLOWDOWN_140NS, rank))),
            ..vm
        }
    }
}

/// Rounds a ratio to parts per million, the resolution of trace files.
fn to_ppm(ratio: f64) -> f64 {
    libm::round(ratio * 1e6) / 1e6
}
