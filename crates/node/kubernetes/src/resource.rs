//! The promised memory of a node as an extended resource, in bytes.
//!
//! A pod that may be placed into memory that others do not use requests it as
//! `resources.limits: {"thermocline.io/promised-memory": 2Gi}`. The kubelet copies an extended resource from the node's capacity to
//! what is allocatable.

use serde_json::json;
use units::Bytes;

use crate::api::{Api, Error};

/// The resource.
pub const RESOURCE: &str = "thermocline.io/promised-memory";

/// Publishes the promise of a node; [`Bytes::ZERO`] withdraws it.
///
/// # Errors
/// [`Error`].
pub fn publish(api: &Api, node: &str, promise: Bytes) -> Result<(), Error> {
    let quantity = if promise == Bytes::ZERO { json!(null) } else { json!(promise.0.to_string()) };
    api.patch_status(node, &json!({ "status": { "capacity": { RESOURCE: quantity } } }))
}

/// Removes the resource from a node.
///
/// # Errors
/// [`Error`].
pub fn withdraw(api: &Api, node: &str) -> Result<(), Error> {
    publish(api, node, Bytes::ZERO)
}
