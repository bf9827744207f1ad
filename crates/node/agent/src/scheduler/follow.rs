//! Which parameters are in effect, and the journal's description of them.

use config::{Config, Policy, Poll, Reload};

use super::{Agent, report};
use crate::controllers::slots::Entry;
use crate::discover::Rules;

impl Agent {
    /// Takes the result of reading the store of bundles. It takes effect at the next control period.
    pub fn follow(&mut self, poll: Poll) {
        for what in self.following.take(poll) {
            self.context.event(None, what);
        }
    }

    /// Between two control periods: applies new parameters, if the bundle in effect changes.
    pub(super) fn update_parameters(&mut self) {
        let (config, events) = self.following.decide(self.context.clock.unix_ms().0 / 1000);
        for what in events {
            self.context.event(None, what);
        }
        if let Some(config) = config {
            self.use_parameters(config);
        }
    }

    /// Takes the configuration file, read again while the agent runs. What cannot change without a restart keeps its value; a file
    /// with an error changes nothing.
    pub(super) fn reload(&mut self, read: Result<Config, String>) {
        let refuse = |why: &str| format!("the configuration was not reloaded, and the former one stays in effect: {why}");
        let new = match read {
            Ok(new) => new,
            Err(why) => return self.context.event(None, refuse(&why)),
        };
        let Reload { config, changed, at_restart, rules } = Reload::of(self.following.own(), new);
        let rules = match Rules::new(&config) {
            // The choice of trackers was made with the policies of the first rules.
            Ok(new) if new.name(Policy::Slowdown) != self.discovery.rules.name(Policy::Slowdown) => {
                return self.context.event(None, refuse("policy slowdown is added or removed; restart the agent"));
            }
            Err(error) => return self.context.event(None, refuse(&error.to_string())),
            Ok(new) => (rules || changed.iter().any(|key| key.starts_with("agent."))).then_some(new),
        };
        let named = |keys: &[&str], none: &str| if keys.is_empty() { none.to_owned() } else { keys.join(", ") };
        let mut what = format!("configuration reloaded: {}", named(&changed, "no knob changed"));
        if rules.is_some() {
            what += "; the job rules apply from now on";
        }
        if !at_restart.is_empty() {
            what += &format!("; at the next start: {}", at_restart.join(", "));
        }
        self.context.event(None, what);
        let in_effect = self.following.set_own(config);
        self.context.repace(&in_effect);
        self.use_parameters(in_effect);
        if let Some(rules) = rules {
            self.discovery.rules = rules;
            self.store_history();
            self.discover(self.context.now());
        }
    }

    /// Applies parameters between two control periods. The controllers keep their state, and the journal records their parameters
    /// again, so that it replays.
    fn use_parameters(&mut self, config: Config) {
        self.context.config = config;
        let Self { context, policies, jobs, .. } = self;
        for Entry { job, slots } in jobs.values_mut() {
            let treatment = job.treatment;
            job.tiering.configure(&context.config, &treatment);
            for (policy, scheduled) in policies.iter().enumerate() {
                // A switch (`writeback.enabled`, `cold_age.page_cache`) was turned. What a policy with a switch has done is one-shot, or
                // was restored within its turn: a controller that goes away leaves nothing to restore.
                let slot = scheduled.policy.slot(&context.config, &treatment, &context.thresholds);
                if slot.is_some() != slots.has(policy) {
                    slots.set(policy, slot);
                    // What page cache takes of the stall target is known again after a period of its controller, if there is one.
                    job.signals.stall.iter_mut().for_each(|stall| stall.page_cache = units::RatioPpm::default());
                }
            }
            slots.iter_mut().for_each(|slot| slot.configure(job, &context.config));
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
