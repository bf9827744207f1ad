//! How a recorded decision is repeated.

use policy::thresholds::Thresholds;

/// A controller's parameters and its state between two recorded periods.
pub trait Replay {
    /// The journal record of one period.
    type Record;

    /// Runs the policy on the recorded input, keeps the resulting state, and returns whether the decision is the recorded one.
    fn replay(&mut self, record: &Self::Record, thresholds: &Thresholds) -> bool;
}

/// The starting state of a controller whose records are complete in themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stateless<R>(std::marker::PhantomData<R>);

impl<R> Stateless<R> {
    /// The only value.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}
