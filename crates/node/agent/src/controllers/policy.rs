//! A policy as the scheduler knows it: when it decides, for which jobs, and what it does for the whole machine.

use std::fmt::Debug;
use std::time::Duration;

use config::Config;
use policy::thresholds::Thresholds;

use super::seam::Slot;
use super::slots::Jobs;
use crate::context::Context;
use crate::discover::Treatment;
use crate::job::Job;
use crate::view::View;

/// When a policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// At each control period of the agent.
    Control,
    /// At a period of its own.
    Every(Duration),
    /// When [`Policy::act`] finds that it is time.
    Own,
}

/// One policy of the machine.
pub trait Policy: Debug {
    /// When it decides.
    fn cadence(&self, config: &Config) -> Cadence;

    /// The controller of a new job; `None` if the job's policy does not include this one.
    fn slot(&self, config: &Config, treatment: &Treatment, thresholds: &Thresholds) -> Option<Box<dyn Slot>>;

    /// Carries out a bounded step of what was decided, besides the plans that [`Slot::offload`] carries out. Returns how long
    /// to wait for the next step; `None` if there is nothing to do.
    fn act(&mut self, _jobs: &mut Jobs, _context: &mut Context) -> Option<Duration> {
        None
    }

    /// Restores what was set for a job that has ended or that no rule names any more.
    fn release(&mut self, _job: &Job, _context: &mut Context) {}

    /// Ends what is in progress, before the agent exits.
    fn stop(&mut self, _jobs: &mut Jobs, _context: &mut Context) {}

    /// Writes the policy's figures into the agent's view.
    fn report(&self, _view: &mut View) {}
}
