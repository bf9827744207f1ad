//! Commands about this machine: what it can do, the agent and its jobs, and advice from what the agent recorded.

pub(crate) mod agent;
pub(crate) mod arena;
pub(crate) mod configuration;
pub(crate) mod doctor;
pub(crate) mod import;
mod job_rules;
mod kept;
mod knobs;
pub(crate) mod kubernetes;
pub(crate) mod network;
pub(crate) mod observe;
pub(crate) mod plan;
pub(crate) mod rates;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod status;
mod text;
pub(crate) mod top;
pub(crate) mod trial;
