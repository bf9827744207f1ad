//! A checksum chain over the ledger, and the mark that the pool's directory keeps of it.
//!
//! # Problem
//! The store checks its own pages, and after damage it may return to an earlier transaction without a word: an assignment that was
//! answered is then forgotten, and its slices are assigned twice. A ledger that was restored from a backup, or was made
//! beside files in use, forgets in the same way. Nothing in the file itself can show that it is old.
//!
//! # Derivation
//! `rows` is the exclusive or of one hash per row, so that a transaction updates it from the rows that it changes, and a reader
//! computes it from all rows: a changed, missing or additional row shows. Each transaction has a number, and links itself to the one
//! before: `link = hash(pool, sequence, previous link, rows)`. The last link is also written into the pool's directory, after the
//! transaction and before its requests are answered. That memory is lost together with the slices' contents, and only then, so a
//! ledger is the one that the files belong to if its link is the directory's. One that is a single transaction ahead is right, too:
//! the manager was killed between the two writes, and answered nothing. No other is.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The first bytes of a SHA-256 hash: as many as make accidental equality impossible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Hash([u8; 16]);

impl Hash {
    fn of(parts: &[&[u8]]) -> Self {
        let mut all = Vec::new();
        for part in parts {
            all.extend_from_slice(&part.len().to_le_bytes());
            all.extend_from_slice(part);
        }
        let mut hash = [0; 16];
        hash.iter_mut().zip(digest(&SHA256, &all).as_ref()).for_each(|(to, from)| *to = *from);
        Self(hash)
    }

    /// A random identity; `None` if the system gives no random numbers.
    pub(crate) fn random() -> Option<Self> {
        let mut random = [0; 16];
        aws_lc_rs::rand::fill(&mut random).ok().map(|()| Self(random))
    }

    /// The hash of a row.
    pub(crate) fn row(table: &str, key: &[u8], value: &[u8]) -> Self {
        Self::of(&[table.as_bytes(), key, value])
    }

    /// Adds a row to those that this hash covers, or removes it.
    pub(crate) fn toggle(&mut self, row: Self) {
        self.0.iter_mut().zip(row.0).for_each(|(to, from)| *to ^= from);
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a hash of 32 hexadecimal digits");
        let number = u128::from_str_radix(&text, 16).map_err(|_| invalid())?;
        if text.len() == 32 { Ok(Self(number.to_be_bytes())) } else { Err(invalid()) }
    }
}

/// Where a ledger stands. The default is that of a ledger without a chain, by an earlier version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    /// Drawn at random when the ledger was created.
    pub(crate) pool: Hash,
    /// Number of the last transaction.
    pub(crate) sequence: u64,
    /// All rows but the one with the chain.
    pub(crate) rows: Hash,
    /// The last link.
    pub(crate) link: Hash,
    /// The link before it.
    pub(crate) previous: Hash,
}

impl Chain {
    /// The chain of a new ledger, before its first transaction.
    pub(crate) fn start(random: [u8; 16]) -> Self {
        Self { pool: Hash(random), ..Self::default() }
    }

    /// The chain after the next transaction, which leaves `rows`. `about` is the content of the chain's own row, without the chain.
    #[must_use]
    pub(crate) fn next(&self, rows: Hash, about: &[u8]) -> Self {
        let sequence = self.sequence.saturating_add(1);
        Self { sequence, rows, previous: self.link, link: self.link_of(sequence, self.link, rows, about), ..*self }
    }

    fn link_of(&self, sequence: u64, previous: Hash, rows: Hash, about: &[u8]) -> Hash {
        Hash::of(&[&self.pool.0, &sequence.to_le_bytes(), &previous.0, &rows.0, about])
    }

    /// Whether these are the rows, and the link is what follows from them. A ledger without a chain has nothing to check.
    pub(crate) fn is_intact(&self, rows: Hash, about: &[u8]) -> bool {
        self.sequence == 0 || (self.rows == rows && self.link == self.link_of(self.sequence, self.previous, rows, about))
    }

    /// What the pool's directory keeps of it.
    pub(crate) fn mark(&self) -> Mark {
        Mark { pool: self.pool, sequence: self.sequence, link: self.link }
    }

    /// Why the slices' files do not belong to this ledger, if they do not.
    pub(crate) fn disagrees(&self, mark: &Mark) -> Option<&'static str> {
        let follows = mark.link == self.previous && mark.sequence.checked_add(1) == Some(self.sequence);
        if mark.pool != self.pool {
            Some("they belong to another ledger")
        } else if *mark == self.mark() || follows {
            None
        } else if mark.sequence > self.sequence {
            Some("they are newer: this ledger is an earlier state, and has forgotten assignments")
        } else {
            Some("this ledger was changed beside other files")
        }
    }
}

/// The last link of a ledger, as the pool's directory keeps it: one line of fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pool: Hash,
    sequence: u64,
    link: Hash,
}

impl fmt::Display for Mark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} {:020} {}", self.pool, self.sequence, self.link)
    }
}

impl std::str::FromStr for Mark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().ok_or_else(|| format!("{text:?} is not a mark of a ledger"));
        let pool = word()?.to_owned().try_into()?;
        let sequence = word()?.parse().map_err(|error| format!("{error} in {text:?}"))?;
        let link = word()?.to_owned().try_into()?;
        Ok(Self { pool, sequence, link })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(steps: u8) -> Chain {
        (0..steps).fold(Chain::start([7; 16]), |chain, step| chain.next(Hash::row("slices", &[step], b"free"), b"about"))
    }

    #[test]
    fn a_mark_is_read_as_written() {
        let mark = chain(3).mark();
        assert_eq!(mark.to_string().parse(), Ok(mark));
        assert_eq!(mark.to_string().len(), chain(200).mark().to_string().len(), "it can be overwritten in place");
        for text in ["", "a b c", "00 1 00", &mark.to_string()[..70]] {
            assert!(text.parse::<Mark>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_same_ledger_and_one_transaction_ahead_agree() {
        let mark = chain(5).mark();
        assert_eq!(chain(5).disagrees(&mark), None);
        assert_eq!(chain(6).disagrees(&mark), None, "killed before the mark was written");
        assert!(chain(4).disagrees(&mark).unwrap().contains("newer"));
        assert!(chain(7).disagrees(&mark).unwrap().contains("other files"));
        let elsewhere = chain(4).next(Hash::row("slices", &[9], b"online"), b"about");
        assert!(elsewhere.disagrees(&mark).unwrap().contains("other files"), "two ledgers from one copy");
        assert!(elsewhere.next(Hash::default(), b"about").disagrees(&mark).is_some());
        assert!(Chain::start([8; 16]).disagrees(&mark).unwrap().contains("another"));
    }

    #[test]
    fn a_changed_row_breaks_the_chain() {
        let mut rows = Hash::default();
        rows.toggle(Hash::row("slices", &[1], b"free"));
        rows.toggle(Hash::row("slices", &[2], b"free"));
        let chain = Chain::start([7; 16]).next(rows, b"about");
        assert!(chain.is_intact(rows, b"about"));
        assert!(!chain.is_intact(rows, b"abouT"));
        let mut other = rows;
        other.toggle(Hash::row("slices", &[2], b"free"));
        assert!(!chain.is_intact(other, b"about"), "a missing row");
        other.toggle(Hash::row("slices", &[2], b"online"));
        assert!(!chain.is_intact(other, b"about"));
        assert!(Chain::default().is_intact(rows, b"about"), "an earlier version's");
    }
}
