//! A limit, `memory.high`, set once: the kernel reclaims what exceeds it, at each allocation.

use units::Bytes;

use super::senpai::SWAPPINESS;
use crate::law::{Law, Request};
use crate::view::View;

/// The limit.
#[derive(Clone, Copy, Debug)]
pub struct MemoryHigh(Bytes);

impl MemoryHigh {
    /// A limit of so many bytes.
    #[must_use]
    pub fn new(limit: Bytes) -> Self {
        Self(limit)
    }
}

impl Law for MemoryHigh {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        match view.current() - self.0 {
            Bytes::ZERO => Vec::new(),
            bytes => vec![Request::Reclaim { bytes, bias: SWAPPINESS }],
        }
    }
}
