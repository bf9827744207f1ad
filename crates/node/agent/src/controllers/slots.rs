//! The jobs and their controllers.

use std::any::Any;
use std::collections::BTreeMap;

use super::seam::Slot;
use crate::job::Job;

/// All jobs, by path relative to the cgroup root.
pub type Jobs = BTreeMap<String, Entry>;

/// A job beside its controllers, so that both can be borrowed at the same time.
#[derive(Debug)]
pub struct Entry {
    /// What the controllers share.
    pub job: Job,
    /// The controllers.
    pub slots: Slots,
}

/// The controllers of one job, in the order of the agent's policies. A job has no controller of a policy that is not its own.
#[derive(Debug)]
pub struct Slots(Vec<Option<Box<dyn Slot>>>);

impl Slots {
    /// One slot per policy of the agent.
    #[must_use]
    pub fn new(slots: Vec<Option<Box<dyn Slot>>>) -> Self {
        Self(slots)
    }

    /// The controllers that the job has.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Slot> {
        self.0.iter().flatten().map(AsRef::as_ref)
    }

    /// The same, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Slot>> {
        self.0.iter_mut().flatten()
    }

    /// The controller of a policy, by its index in the agent's list.
    pub fn at(&mut self, policy: usize) -> Option<&mut Box<dyn Slot>> {
        self.0.get_mut(policy)?.as_mut()
    }

    /// Whether the job has a controller of a policy.
    #[must_use]
    pub fn has(&self, policy: usize) -> bool {
        self.0.get(policy).is_some_and(Option::is_some)
    }

    /// Gives the job a controller of a policy, or takes it.
    pub fn set(&mut self, policy: usize, slot: Option<Box<dyn Slot>>) {
        if let Some(place) = self.0.get_mut(policy) {
            *place = slot;
        }
    }

    /// The controller of a type.
    #[must_use]
    pub fn get<C: Slot>(&self) -> Option<&C> {
        self.iter().find_map(|slot| (slot as &dyn Any).downcast_ref())
    }

    /// The same, to change.
    pub fn get_mut<C: Slot>(&mut self) -> Option<&mut C> {
        self.iter_mut().find_map(|slot| (slot.as_mut() as &mut dyn Any).downcast_mut())
    }
}
