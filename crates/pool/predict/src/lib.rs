//! Predictions on the VM request path (Pond section 4.4): how much memory a VM will leave untouched, and whether it is
//! sensitive to the latency of slow memory.
//!
//! Models are trained by `thermocline-learn` and stored as ONNX files, with all parameters of serving in their
//! metadata. They are ensembles of decision trees: a few arrays, which this crate reads and evaluates. A C++ runtime of tens of
//! megabytes would be no faster, and could not guarantee that a damaged file causes an error and not a crash.
//!
//! A VM that has a past week of its own is predicted by it ([`own_past`]), without a model. If a model gives no prediction, the [`Predictor`] gives the safe answer, all memory local, and counts the reason.
#![deny(missing_docs)]

mod counts;
mod decision;
mod error;
mod forest;
mod history;
mod insensitive;
mod metadata;
mod onnx;
pub mod own_past;
mod predictor;
mod request;
mod untouched;
mod workloads;

pub use counts::{Alert, Counts, Limits, Tally};
pub use decision::{Decision, Latency, NoAnswer, Predicted, Reason, SLICE};
pub use error::{Error, Result};
pub use forest::{DEPTH_MAX, NODES_MAX};
pub use history::{CUSTOMERS_MAX, History};
pub use insensitive::Insensitive;
pub use onnx::FILE_BYTES_MAX;
pub use predictor::Predictor;
pub use request::Request;
pub use untouched::Untouched;
pub use workloads::{Evidence, Workloads};
