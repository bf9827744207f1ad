//! One cluster: who deploys what in it, and when.

use std::collections::VecDeque;

use fastrand::Rng;

use super::customer::{self, leaning};
use super::kinds::{FAMILIES, GUEST_SYSTEMS, LIVES, SIZES, SLOWDOWN_64NS, SLOWDOWN_140NS, Type, between};
use super::random::{Wander, log_normal, normal, pick, share, stream};
use super::{DAY, Settings};
use crate::vm::Vm;

/// Days before the trace begins in which VMs come, so that it begins with those that ran.
const BEFORE_DAYS: f64 = 60.0;
/// How a deployment goes on: with each VM, the chance of another.
pub(super) const ANOTHER: f64 = 0.5;
const DEPLOYMENT_MAX: u32 = 64;
/// How the demand for cores wanders: by the standard deviation of its logarithm, and days.
const DEMAND: (f64, f64) = (0.45, 6.0);
/// How the mix of families wanders, the same way.
const MIX: (f64, f64) = (0.40, 12.0);
/// How much clusters differ for good: in size, in mix, in untouched memory; regions in the latter.
const SIZE: f64 = 0.3;
const LASTING_MIX: f64 = 0.35;
const LASTING_UNTOUCHED: f64 = 0.33;
const REGION_UNTOUCHED: f64 = 0.33;
/// Day and night: arrivals move by so much.
const DIURNAL: f64 = 0.35;
/// How VMs of one workload differ: in the log odds of the untouched share, and in rank.
pub(super) const WITHIN: f64 = 0.55;
const RANK_NOISE: f64 = 0.03;
/// The share of deployments in the type that their workload has most.
const USUAL: f64 = 0.85;

/// A VM, and what was known of its untouched share before it was drawn: what the best of all predictions could know.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) vm: Vm,
    /// The middle of its log odds; `None` where all is touched.
    pub(super) expected: Option<f64>,
}

/// A cluster as time goes by.
#[derive(Debug)]
pub(super) struct Cluster {
    seed: u64,
    number: u32,
    region: u32,
    regions: u32,
    regulars: f64,
    random: Rng,
    /// Deployments a day, in the mean.
    rate: f64,
    day: f64,
    demand: Wander,
    mix: [Wander; FAMILIES.len()],
    lasting_mix: [f64; FAMILIES.len()],
    untouched: f64,
    /// What is left of the deployment at hand.
    deployed: VecDeque<Drawn>,
}

/// All clusters.
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
            // Only its proportion to the others, for now.
            rate: log_normal(&mut random, (1.0, SIZE)),
            day: -BEFORE_DAYS,
            demand: Wander::new(DEMAND.0, DEMAND.1, &mut random),
            mix: std::array::from_fn(|_| Wander::new(MIX.0, MIX.1, &mut random)),
            lasting_mix: std::array::from_fn(|_| LASTING_MIX * normal(&mut random)),
            untouched: LASTING_UNTOUCHED * normal(&mut random) + REGION_UNTOUCHED * normal(of_region),
            deployed: VecDeque::new(),
            random,
        }
    }

    /// The next VM that is there in or after second 0; `None` after the second `ends`.
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

    /// Goes on to the next deployment, or by a day if none comes in it.
    fn deploy(&mut self) {
        let rhythm = 1.0 + DIURNAL * libm::cos(std::f64::consts::TAU * (self.day - 0.6));
        let rate = self.rate * rhythm * libm::exp(self.demand.value - DEMAND.0 * DEMAND.0 / 2.0);
        let wait = -libm::log(1.0 - self.random.f64()) / rate;
        // By then, the rate is another; what has not come is as likely to come as it was.
        let passed = wait.min(1.0);
        self.day += passed;
        self.demand.pass(passed, &mut self.random);
        self.mix.iter_mut().for_each(|mix| mix.pass(passed, &mut self.random));
        if wait > 1.0 {
            return;
        }
        let workload = customer::next(self.seed, (self.region, self.regions), self.regulars, &mut self.random);
        let weight = |(family, of): (usize, &super::kinds::Family)| {
            of.share * leaning(of.sensitive, workload.rank) * libm::exp(self.mix[family].value + self.lasting_mix[family])
        };
        let usual = self.random.f64() < USUAL;
        // The same place among families, whose weights wander: a mix that moves takes the workloads on the border along.
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
            ..Type { family, size }.ask(Vm::default())
        };
        for _ in 0..DEPLOYMENT_MAX {
            let vm = self.live(known.clone(), expected, &workload);
            self.deployed.push_back(Drawn { vm, expected });
            if self.random.f64() >= ANOTHER {
                break;
            }
        }
    }

    /// What becomes of one VM.
    fn live(&mut self, vm: Vm, expected: Option<f64>, workload: &customer::Workload) -> Vm {
        let random = &mut self.random;
        #[expect(clippy::cast_possible_truncation, reason = "at most some years")]
        let seconds = (log_normal(random, LIVES[workload.life].1) * 3_600.0).clamp(1.0, 1e8) as i64;
        // Reflected at both ends: no rank is likelier than another.
        let moved = (workload.rank + RANK_NOISE * normal(random)).abs();
        let rank = if moved > 1.0 { 2.0 - moved } else { moved }.clamp(0.0, 1.0);
        let untouched = expected.map_or(0.0, |middle| share(middle + WITHIN * normal(random)));
        Vm {
            departure: Some(vm.arrival + seconds),
            untouched_ratio: Some(millionths(untouched)),
            slowdown_64ns: Some(millionths(between(&SLOWDOWN_64NS, rank))),
            slowdown_140ns: Some(millionths(between(&SLOWDOWN_140NS, rank))),
            ..vm
        }
    }
}

/// Rounded as files hold it.
fn millionths(ratio: f64) -> f64 {
    libm::round(ratio * 1e6) / 1e6
}
