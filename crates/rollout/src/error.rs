//! What can go wrong between an operator and a machine.

/// The result of most functions here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be published, fetched or followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An assignment that nobody may follow.
    #[error("assignment.json: {what}")]
    Assignment {
        /// Everything that is wrong with it.
        what: String,
    },
}
