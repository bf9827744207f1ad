//! The last decisions of a controller, kept in memory for `thermocline explain`.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use units::UnixMillis;

/// Decisions kept per controller and job.
pub const RECENT_MAX: usize = 64;

/// One decision in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// When it was made, in milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The decision and the numbers that it is based on.
    #[serde(serialize_with = "as_text")]
    pub text: Arc<str>,
}

fn as_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

/// The last decisions, oldest first. Equal texts in a row share their memory.
#[derive(Clone, Debug, Default)]
pub struct Recent(VecDeque<Explained>);

impl Recent {
    /// Adds a decision and drops the oldest if there are more than [`RECENT_MAX`].
    pub fn push(&mut self, unix_ms: UnixMillis, text: &str) {
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        let text = match self.0.back() {
            Some(last) if *last.text == *text => Arc::clone(&last.text),
            _ => Arc::from(text),
        };
        self.0.push_back(Explained { unix_ms, text });
    }

    /// All decisions kept, oldest first.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Explained> {
        self.0.iter().cloned().collect()
    }

    /// The number of decisions kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no decision has been made yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_decisions_are_kept() {
        let mut recent = Recent::default();
        for unix_ms in 0..100 {
            recent.push(UnixMillis(unix_ms), "hold");
        }
        let kept = recent.to_vec();
        assert_eq!((kept.len(), kept[0].unix_ms), (RECENT_MAX, UnixMillis(100 - RECENT_MAX as u64)));
        assert!(Arc::ptr_eq(&kept[0].text, &kept[RECENT_MAX - 1].text));
    }
}
