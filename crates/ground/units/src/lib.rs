//! Units as types, so that pages are never added to bytes, nor seconds to scan periods; parsing and printing of them. Pure.
//!
//! Arithmetic that would leave the range saturates: an agent that reads an implausible number must hold back, not panic.
#![deny(missing_docs)]

mod access_rate;
mod age;
mod counter;
mod memory;
pub mod quantity;
mod ratio;
mod slices;
mod time;

pub use access_rate::AccessRate;
pub use age::Age;
pub use memory::{Bytes, PageSize, Pages};
pub use ratio::RatioPpm;
pub use slices::Slices;
pub use time::{Millis, UnixMillis, micros, millis, nanos};
