//! Commands about a fleet: traces, the model, experiments, and rollouts of parameters.

pub(crate) mod experiment;
pub(crate) mod model;
pub(crate) mod rollout;
pub(crate) mod traces;
