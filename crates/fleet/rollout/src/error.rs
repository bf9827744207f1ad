//! What can go wrong between an operator and a machine.

use serde::Serialize;
use store::FileError;

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
    /// A bundle with something wrong in it.
    #[error(transparent)]
    Bundle(#[from] config::Problems),
    /// What the store offers is not what was signed, or not what may be followed.
    #[error("{reason}: {what}")]
    Refused {
        /// In one word.
        reason: Refusal,
        /// What was refused, and why.
        what: String,
    },
    /// The store cannot be reached, or lacks what it should hold.
    #[error("{what}")]
    Away {
        /// What could not be had.
        what: String,
    },
    /// Something cannot be published as it was asked for.
    #[error("{what}; {remedy}")]
    Publish {
        /// What is in the way.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The store of bundles cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// Traces that say nothing about what was asked.
    #[error("{what}")]
    Evidence {
        /// Why.
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

    /// Why it is refused, where it is.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            Self::Bundle(_) | Self::Assignment { .. } => Some(Refusal::OutOfRange),
            _ => None,
        }
    }

    /// What the library of The Update Framework says, in our terms.
    pub(crate) fn from_tough(error: &tough::error::Error) -> Self {
        use tough::error::Error as Tough;
        // What breaks off a download is told as trouble on the way.
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        let mut innermost = error;
        while let Some(error) = cause {
            innermost = error.downcast_ref::<Tough>().unwrap_or(innermost);
            cause = error.source();
        }
        let what = in_words(innermost);
        let reason = match innermost {
            Tough::Transport { .. } => return Self::Away { what },
            Tough::ExpiredMetadata { .. } => Refusal::Expired,
            Tough::OlderMetadata { .. }
            | Tough::OlderSnapshotInTimestamp { .. }
            | Tough::SnapshotRoleMissing { .. }
            | Tough::SnapshotRoleRollback { .. } => Refusal::Rollback,
            Tough::VerifyMetadata { .. } | Tough::VerifyTrustedMetadata { .. } | Tough::VerifyRoleMetadata { .. } => Refusal::Signature,
            Tough::HashMismatch { .. } | Tough::VersionMismatch { .. } | Tough::MaxSizeExceeded { .. } => Refusal::Mismatch,
            Tough::SystemTimeSteppedBackward { .. } => Refusal::Clock,
            Tough::DatastoreOpen { .. } | Tough::DatastoreCreate { .. } | Tough::DatastoreRemove { .. } => return Self::Away { what },
            _ => Refusal::Malformed,
        };
        Self::Refused { reason, what }
    }
}

/// An error with its causes, each once.
fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words += ": ";
            words += &text;
        }
        cause = error.source();
    }
    words
}

/// Why what the store offers is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Not signed by as many of the keys as must have.
    Signature,
    /// Older than what was seen before.
    Rollback,
    /// No longer valid: nobody renews it, or somebody withholds what is newer.
    Expired,
    /// Not the file, or the version, that was signed to be there.
    Mismatch,
    /// Not what such a file looks like.
    Malformed,
    /// Signed, and beyond what a machine may be told.
    OutOfRange,
    /// This machine's clock went back, so that nothing can be said of what has expired.
    Clock,
}

impl Refusal {
    /// Every one of them.
    pub const ALL: [Self; 7] =
        [Self::Signature, Self::Rollback, Self::Expired, Self::Mismatch, Self::Malformed, Self::OutOfRange, Self::Clock];

    /// As in metrics.
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
            Self::Signature => "refused for its signatures",
            Self::Rollback => "refused, being older than what was seen before",
            Self::Expired => "refused, having expired",
            Self::Mismatch => "refused, not being what was signed",
            Self::Malformed => "refused for its form",
            Self::OutOfRange => "refused, being out of range",
            Self::Clock => "refused, because this machine's clock went back",
        })
    }
}
