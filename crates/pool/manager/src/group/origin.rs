//! Which files a member has, in messages and in its log ([`super::known`]).

use serde::{Deserialize, Serialize};

use crate::chain::Hash;

/// The files of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// Drawn when they were made.
    pub(crate) files: Hash,
    /// Whether that was by `init --join`.
    pub(crate) joined: bool,
}

/// An answer with the files of the member that gives it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer<T> {
    pub(crate) origin: Origin,
    pub(crate) answer: T,
}

/// An answer of any version.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum AnyAnswer<T> {
    Known(Answer<T>),
    /// Of a version whose files had no number.
    Former(T),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_former_versions_are_read() {
        type Voted = Result<u64, String>;
        let read = |text: &str| match serde_json::from_str::<AnyAnswer<Voted>>(text).unwrap() {
            AnyAnswer::Known(known) => (Some(known.origin), known.answer),
            AnyAnswer::Former(answer) => (None, answer),
        };
        assert_eq!(read(r#"{"Ok":7}"#), (None, Ok(7)));
        assert_eq!(read(r#"{"Err":"no"}"#), (None, Err("no".to_owned())));
        let origin = Origin { files: Hash::random().unwrap(), joined: true };
        let text = serde_json::to_string(&Answer { origin, answer: Voted::Ok(8) }).unwrap();
        assert_eq!(read(&text), (Some(origin), Ok(8)));
    }
}
