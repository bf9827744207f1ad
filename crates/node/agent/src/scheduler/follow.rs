//! Which parameters are in effect, and the journal's description of them.

use config::Poll;

use super::{Agent, report};
use crate::controllers::slots::Entry;

impl Agent {
    /// Takes the result of reading the store of bundles. It takes effect at the next control period.
    pub fn follow(&mut self, poll: Poll) {
        for what in self.following.take(poll) {
            self.context.event(None, what);
        }
    }

    /// Between two control periods: applies new parameters, if the bundle in effect changes. The controllers keep their state,
    /// and the journal records their parameters again, so that it replays.
    pub(super) fn update_parameters(&mut self) {
        let (config, events) = self.following.decide(self.context.clock.unix_ms().0 / 1000);
        for what in events {
            self.context.event(None, what);
        }
        let Some(config) = config else { return };
        self.context.config = config;
        for Entry { job, slots } in self.jobs.values_mut() {
            let treatment = job.treatment;
            job.tiering.configure(&self.context.config, &treatment);
            slots.iter_mut().for_each(|slot| slot.configure(job, &self.context.config));
        }
        for record in report::beginning(&self.context, &self.identity, &self.following, &self.jobs) {
            self.context.log.push(record);
        }
        self.write_journal();
    }

    /// Writes the pending records.
    pub(super) fn write_journal(&mut self) {
        let Self { context, identity, following, jobs, .. } = self;
        if context.log.pending().is_empty() {
            return;
        }
        let unix_ms = context.clock.unix_ms();
        let agent = report::agent_record(context, identity, following.version(), unix_ms);
        context.log.write(|| report::records(&agent, jobs));
    }
}
