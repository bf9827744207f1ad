//! Errors of publishing, fetching and following bundles.

use serde::Serialize;
use store::FileError;

/// The result of most functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of publishing, fetching or following a bundle.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An assignment is invalid.
    #[error("assignment.json: {what}")]
    Assignment {
        /// All problems.
        what: String,
    },
    /// A bundle is invalid.
    #[error(transparent)]
    Bundle(#[from] config::Problems),
    /// The contents of the store are not what was signed, or must not be followed.
    #[error("{reason}: {what}")]
    Refused {
        /// Category.
        reason: Refusal,
        /// What was refused, and why.
        what: String,
    },
    /// The store cannot be reached, or lacks a file.
    #[error("{what}")]
    Unavailable {
        /// Description.
        what: String,
    },
    /// A change cannot be published.
    #[error("{what}; {remedy}")]
    Publish {
        /// The reason.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The store of bundles cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// Traces do not contain the required evidence.
    #[error("{what}")]
    Evidence {
        /// The reason.
        what: String,
    },
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Error {
    pub(crate) fn publish(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Publish { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn refused(reason: Refusal, what: impl Into<String>) -> Self {
        Self::Refused { reason, what: what.into() }
    }

    /// Returns the category of a refusal; `None` for other errors.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            Self::Bundle(_) | Self::Assignment { .. } => Some(Refusal::OutOfRange),
            _ => None,
        }
    }

    /// Converts an error of the TUF library.
    pub(crate) fn from_tough(error: &tough::error::Error) -> Self {
        use tough::error::Error as Tough;
        // An error during a download is wrapped: the innermost error of the library is the cause.
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        let mut innermost = error;
        while let Some(error) = cause {
            innermost = error.downcast_ref::<Tough>().unwrap_or(innermost);
            cause = error.source();
        }
        let what = with_causes(innermost);
        let reason = match innermost {
            Tough::Transport { .. } => return Self::Unavailable { what },
            Tough::ExpiredMetadata { .. } => Refusal::Expired,
            Tough::OlderMetadata { .. }
            | Tough::OlderSnapshotInTimestamp { .. }
            | Tough::SnapshotRoleMissing { .. }
            | Tough::SnapshotRoleRollback { .. } => Refusal::Rollback,
            Tough::VerifyMetadata { .. } | Tough::VerifyTrustedMetadata { .. } | Tough::VerifyRoleMetadata { .. } => Refusal::Signature,
            Tough::HashMismatch { .. } | Tough::VersionMismatch { .. } | Tough::MaxSizeExceeded { .. } => Refusal::Mismatch,
            Tough::SystemTimeSteppedBackward { .. } => Refusal::Clock,
            Tough::DatastoreOpen { .. } | Tough::DatastoreCreate { .. } | Tough::DatastoreRemove { .. } => {
                return Self::Unavailable { what };
            }
            _ => Refusal::Malformed,
        };
        Self::Refused { reason, what }
    }
}

/// Formats an error with its causes, each once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message += ": ";
            message += &text;
        }
        cause = error.source();
    }
    message
}

/// Category of the reason why the contents of the store are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Fewer valid signatures than required.
    Signature,
    /// Older than a version verified before.
    Rollback,
    /// Expired: the signatures were not renewed, or a newer version is withheld.
    Expired,
    /// Another file or version than the signed one.
    Mismatch,
    /// Invalid format.
    Malformed,
    /// Signed, but with values outside their ranges.
    OutOfRange,
    /// This machine's clock went back, so that expiry cannot be checked.
    Clock,
}

impl Refusal {
    /// All categories.
    pub const ALL: [Self; 7] =
        [Self::Signature, Self::Rollback, Self::Expired, Self::Mismatch, Self::Malformed, Self::OutOfRange, Self::Clock];

    /// Returns the name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Signature => "signature",
            Self::Rollback => "rollback",
            Self::Expired => "expired",
            Self::Mismatch => "mismatch",
            Self::Malformed => "malformed",
            Self::OutOfRange => "out_of_range",
            Self::Clock => "clock",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Signature => "refused: too few valid signatures",
            Self::Rollback => "refused: older than a version verified before",
            Self::Expired => "refused: expired",
            Self::Mismatch => "refused: not the signed file or version",
            Self::Malformed => "refused: invalid format",
            Self::OutOfRange => "refused: out of range",
            Self::Clock => "refused: this machine's clock went back",
        })
    }
}
