//! Which files each member has. A member whose files were lost has forgotten what it voted for, and must not vote in the same term again.
//!
//! `pool manager init` draws a random number for the files that it makes. Each member keeps those of the others: the first ones that
//! it meets. It accepts others only if `init --join` made them, because such a member votes only when it has all entries
//! and no election goes on in which it may have voted before. A member with other files than these was initialized as a new one in
//! a group that exists. It neither counts nor leads: what it sends is refused, and what it answers is not heard.

use std::sync::PoisonError;

use super::log::{Error, Log};
use super::origin::Origin;

fn key(member: u64) -> String {
    format!("member {member}")
}

impl Log {
    /// Whether the files of a member are known.
    pub(crate) fn has_met(&self, member: u64) -> Result<bool, Error> {
        Ok(self.get::<Origin>(&key(member))?.is_some())
    }

    /// Whether a member has the files that it had, or joined with others. The first ones that it is seen with are its files.
    pub(crate) fn meets(&self, member: u64, origin: Origin) -> Result<bool, Error> {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match all.get(&member) {
            Some(known) => Some(*known),
            None => self.get(&key(member))?.map(|known| (known, false)),
        };
        if let Some((known, reported)) = known
            && known != origin
            && !origin.joined
        {
            all.insert(member, (known, true));
            if !reported {
                log::error!(
                    "member {member} was initialized again without --join: it does not count, because it has forgotten what it voted for; \
                     stop it, move its ledger and its log away, and run `thermocline pool manager init --join` there"
                );
            }
            return Ok(false);
        }
        if known.is_none_or(|(known, _)| known != origin) {
            self.put(&key(member), &origin)?;
            log::info!("the files of member {member} are known");
        }
        all.insert(member, (origin, false));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Hash;

    #[test]
    fn only_files_made_by_joining_replace_those_of_a_member() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.log");
        Log::create(&path, false, None).unwrap();
        let origin = |joined| Origin { files: Hash::random().unwrap(), joined };
        let (first, again, joined) = (origin(false), origin(false), origin(true));
        let log = Log::open(&path).unwrap();
        let own = log.origin().unwrap();
        assert!(!own.joined && !log.has_met(2).unwrap());
        assert!(log.meets(2, first).unwrap() && log.has_met(2).unwrap());
        assert!(log.meets(2, first).unwrap() && !log.meets(2, again).unwrap() && !log.meets(2, again).unwrap());
        assert!(log.meets(3, again).unwrap(), "another member");
        drop(log);
        let log = Log::open(&path).unwrap();
        assert_eq!(log.origin(), Some(own), "they are the same after a restart");
        assert!(!log.meets(2, again).unwrap() && log.meets(2, first).unwrap());
        assert!(log.meets(2, joined).unwrap());
        assert!(!log.meets(2, first).unwrap(), "files from a backup");
    }
}
