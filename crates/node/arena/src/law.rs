//! The seam of the arena: a law sees a [`View`] and answers with requests.

pub use crate::request::Request;
use crate::view::View;

/// A control law, at one intensity.
pub trait Law {
    /// Decides at the end of an interval. The requests are carried out in their order, before the next interval begins.
    fn step(&mut self, view: &View<'_>) -> Vec<Request>;
}

/// A law that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Law for Nothing {
    fn step(&mut self, _: &View<'_>) -> Vec<Request> {
        Vec::new()
    }
}
