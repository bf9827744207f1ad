//! The ledger as readers get it, without waiting for those who change it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::ledger::Ledger;

/// The state that readers get without waiting for the writer.
#[derive(Clone, Debug)]
pub struct Published {
    /// The ledger as it is on disk.
    pub ledger: Arc<Ledger>,
    /// Why the ledger cannot be written; `None` if it can.
    pub error: Option<String>,
}

/// The published state, which readers and the writer share.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Published>>);

impl Shared {
    /// The state before anything is published.
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self(Arc::new(Mutex::new(Published { ledger: Arc::new(ledger), error: None })))
    }

    /// The state that was published last.
    pub(crate) fn get(&self) -> Published {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes a state.
    pub(crate) fn set(&self, published: Published) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = published;
    }
}
