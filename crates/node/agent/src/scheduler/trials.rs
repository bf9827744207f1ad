//! What trials ask of the loop: to hold a job, to keep a result, to forget it.

use std::time::Duration;

use policy::trial::Kept;
use units::{Millis, RatioPpm};

use super::Agent;
use crate::controllers::slots::Entry;

impl Agent {
    /// Holds a job: it is only observed for that time, and its plans end now.
    pub(super) fn hold(&mut self, path: &str, time: Duration) {
        let Some(Entry { job, slots }) = self.jobs.get_mut(path) else {
            return self.context.event(Some(path), "a trial came too late: the job has ended".to_owned());
        };
        job.held_until = (!time.is_zero()).then(|| self.context.clock.now().saturating_add(time));
        let what = if time.is_zero() {
            "trial: far memory as the policy decides".to_owned()
        } else {
            slots.iter_mut().for_each(|slot| {
                slot.forget_ages();
                slot.abandon();
            });
            format!("trial: no far memory for {} s at most", time.as_secs())
        };
        self.context.event(Some(path), what);
    }

    /// Keeps a result, from the next decision on.
    pub(super) fn keep_trial(&mut self, path: &str, trial: Kept) {
        let Some(Entry { job, .. }) = self.jobs.get(path) else {
            return self.context.event(Some(path), "the result of a trial came too late: the job has ended".to_owned());
        };
        let context = &mut self.context;
        let tolerated = context.config.slowdown_tolerated(job.treatment.class);
        let trial = Kept { at_unix_ms: context.clock.unix_ms(), ..trial };
        let what = match context.trials.keep(path, trial, tolerated, Millis::from(context.config.agent.trial_keep)) {
            Ok(applies) => format!("the result of a trial is kept: {}", in_words(&applies, &trial, tolerated)),
            Err(error) => format!("the result of a trial is not kept: {error}"),
        };
        context.event(Some(path), what);
    }

    /// Forgets a result, from the next decision on.
    pub(super) fn forget_trial(&mut self, path: &str) {
        let what = match self.context.trials.forget(path) {
            Ok(true) => "the result of a trial is forgotten".to_owned(),
            Ok(false) => "no result of a trial was kept".to_owned(),
            Err(error) => format!("the result of a trial is not forgotten: {error}"),
        };
        self.context.event(Some(path), what);
    }
}

/// What applies after a trial.
fn in_words(applies: &Kept, trial: &Kept, tolerated: RatioPpm) -> String {
    let percent = |ppm: i32| f64::from(ppm) / 1e4;
    let (slowdown, lower, upper) = (percent(trial.slowdown_ppm), percent(trial.lower_ppm), percent(trial.upper_ppm));
    let found = format!("slowdown {slowdown:.2} % ({lower:.2} to {upper:.2}), tolerated {tolerated}");
    if applies != trial {
        return format!("{found}; the limit of an earlier trial stays, because it was in effect meanwhile");
    }
    match applies.promotions_max(tolerated, Millis(1_000_000), RatioPpm(0)) {
        Some(pages) => format!("{found}; at most {} promotions in 1,000 s, where there were {}", pages.0, trial.promoted_per_1000_s),
        None => format!("{found}; nothing is limited"),
    }
}
