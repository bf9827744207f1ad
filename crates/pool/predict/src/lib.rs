//! Predictions on the VM request path (Pond, section 4.4): how much memory a VM will leave untouched, and whether it would
//! notice slow memory at all.
//!
//! Models are trained by `python -m thermocline.learn` and come as ONNX files with everything that serving needs in their
//! metadata. They are ensembles of decision trees: a few arrays and a walk over them. This crate reads the arrays and walks;
//! a C++ runtime of tens of megabytes, loaded at run time, would do the same no faster and could not promise that a damaged
//! file is an error and not a crash.
//!
//! What a model may not speak of gets the safe answer, all memory local, with a reason that is counted: [`Predictor`].

mod counts;
mod error;
mod forest;
mod history;
mod insensitive;
mod metadata;
mod onnx;
mod predictor;
mod request;
mod untouched;

pub use counts::{Alert, Counts, Limits, Tally};
pub use error::{Error, Result};
pub use forest::{DEPTH_MAX, NODES_MAX};
pub use history::{CUSTOMERS_MAX, History};
pub use insensitive::Insensitive;
pub use onnx::FILE_BYTES_MAX;
pub use predictor::{Decision, Latency, Predictor, Reason, SLICE_BYTES};
pub use request::Request;
pub use untouched::{Unsaid, Untouched};
