//! What a trace says of itself: where it is from, how far it reaches, and the words behind its numbers.

use serde::{Deserialize, Serialize};

/// What a trace says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Where it is from, for people.
    pub origin: String,
    /// Whether it was made up: nothing in it was measured.
    pub generated: bool,
    /// The last second that it tells of. A VM without a departure ran then, or its departure is unknown.
    pub ends: i64,
    /// Whether seconds count from 1970 (UTC); otherwise from some instant of the trace's own.
    #[serde(default)]
    pub unix_time: bool,
    /// The words behind the numbers of its VMs.
    #[serde(flatten)]
    pub words: Words,
}

/// The words that VMs refer to by number: [`crate::Vm::vm_type`] is a place in `vm_types`, and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// Types of VMs.
    pub vm_types: Vec<String>,
    /// Guest operating systems.
    pub guest_os: Vec<String>,
    /// Regions.
    pub locations: Vec<String>,
}

/// The number of a word, which is added where it is new; `None` where 65,535 are known already.
pub fn number_of(words: &mut Vec<String>, word: &str) -> Option<u16> {
    if let Some(at) = words.iter().position(|known| known == word) {
        return u16::try_from(at).ok();
    }
    let next = u16::try_from(words.len()).ok().filter(|&next| next < u16::MAX)?;
    words.push(word.to_owned());
    Some(next)
}
