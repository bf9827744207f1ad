//! Kubernetes: the pods of a node as job rules of the agent, and the promised memory of a node as its resource.
//!
//! # Problem
//! The agent knows cgroups. A pod's author knows pods, and annotates them. The API server knows both: the annotations of a pod, and
//! its UID and QoS class, from which the kubelet derives its cgroup.
//!
//! # Invariants
//! - Pods are input from outside. Of a pod's text only a UID reaches a rule, after it was checked, and only a class that is one of a
//!   list. No name, label or value becomes a pattern or a path.
//! - What cannot be determined is left alone: a pod with an unknown class, QoS class or UID.
//! - Responses, pods, warnings and attempts are bounded.
//! - Without the API server, the last rules stay.

#![deny(missing_docs)]

mod api;
mod cgroup;
mod file;
mod follow;
mod pod;
mod resource;
mod rules;

pub use api::{Api, Credentials, Error};
pub use cgroup::CgroupRoot;
pub use file::RuleFile;
pub use follow::{Follower, PODS_MAX};
pub use resource::{RESOURCE, publish, withdraw};
pub use rules::{ANNOTATION, Choice};
