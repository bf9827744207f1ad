//! Follow: which parameters are in force.

use config::{Class, Config, Policy, Poll};
use units::Bytes;

use super::{Agent, unix_ms};
use crate::following::watch::{Felt, periods_to_know};
use crate::job::{Job, Parameters};

impl Agent {
    /// Takes in what a look at the store of bundles brought. It holds from the next control period on.
    pub fn follow(&mut self, told: Poll) {
        for what in self.following.take(told) {
            self.event(None, what);
        }
    }

    /// Between two control periods: puts in force what is to be gone by from here on. What the jobs' controllers have
    /// learned stays, and the journal begins anew with their parameters, so that it replays.
    pub(super) fn go_by(&mut self) {
        let (config, said) = self.following.decide(unix_ms() / 1000);
        for what in said {
            self.event(None, what);
        }
        let Some(config) = config else { return };
        self.config = config;
        for job in self.jobs.values_mut() {
            job.set(&parameters(&self.config, job.treatment.class));
        }
        let beginning = self.beginning();
        self.pending.extend(beginning);
        self.write_journal();
    }

    /// Has the guardrail look at a job's period, under a bundle.
    pub(super) fn watch(&mut self, job: &Job, promotions_ppm: Option<(u64, u64)>, elapsed_ms: u64) {
        if !self.may_act(job) {
            return;
        }
        let (own, class) = (self.following.own(), job.treatment.class);
        let slo = u64::from(own.cold_age_for(class).promotion_rate.0);
        let stall_target_ppm = own.pressure_for(class).stall_target.0;
        let (known_from, promotion_max) = (periods_to_know(own.cold_age_for(class).percentile), own.rollout.promotion_max);
        let Some(watch) = self.following.watch() else { return };
        let promotions_ppm =
            promotions_ppm.filter(|_| job.totals.periods > known_from).and_then(|(rate, in_force)| match job.treatment.policy {
                Policy::ColdAge => Some((rate, slo)),
                // The stall target takes its place, and that too is the operator's own. Where nothing is known yet, it is none.
                Policy::Auto => {
                    let target = job.pressed.as_ref().map_or(0, |pressed| pressed.params.stall_target.0);
                    let own = (u128::from(in_force) * u128::from(stall_target_ppm)).checked_div(u128::from(target))?;
                    u64::try_from(own).ok().filter(|&own| own > 0).map(|own| (rate, own))
                }
                // What comes back is no measure of these.
                Policy::Pressure | Policy::Background | Policy::Slowdown => None,
            });
        let stall_us = job.cgroup.pressure().map_or(0, |memory| memory.some.total_us);
        let far = job.memory.far > Bytes::ZERO;
        watch.note(job.path(), &Felt { promotions_ppm, far, stall_us, elapsed_ms, stall_target_ppm }, promotion_max);
    }

    /// Has the guardrail forget jobs that have ended.
    pub(super) fn watch_those_that_live(&mut self) {
        let jobs = &self.jobs;
        if let Some(watch) = self.following.watch() {
            watch.keep(|job| jobs.contains_key(job));
        }
    }
}

/// What a configuration sets the controllers of a class's jobs to.
pub(super) fn parameters(config: &Config, class: Class) -> Parameters {
    Parameters {
        cold_age: config.cold_age_for(class).params(),
        pressure: config.pressure_for(class),
        background: config.background.params(),
        writes: config.swap.job_endurance(),
    }
}
