//! Permissions and features: user and capabilities (`/proc/self/status`), kernel lockdown, and optional interfaces.

mod features;

pub use features::{Feature, features};
use serde::Serialize;

use crate::{Malformed, Result, Roots, file, text};

/// A capability that Thermocline uses (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// `CAP_SYS_PTRACE`: read another process's pagemap and memory.
    SysPtrace,
    /// `CAP_SYS_ADMIN`: page frame numbers, cgroups, kernel parameters.
    SysAdmin,
    /// `CAP_SYS_NICE`: `process_madvise` on another process.
    SysNice,
}

impl Capability {
    /// The capability's name in `capabilities(7)`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
        }
    }

    /// The capability's bit in `CapEff` (`include/uapi/linux/capability.h`).
    fn bit(self) -> u32 {
        match self {
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::SysNice => 23,
        }
    }
}

/// The credentials of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Credentials {
    /// The effective user id; 0 is root.
    pub effective_uid: u32,
    /// The effective capabilities, one bit each.
    pub effective_capabilities: u64,
}

impl Credentials {
    /// Whether the effective user is root. In a container, root may lack capabilities.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.effective_uid == 0
    }

    /// Whether a capability is in effect.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.effective_capabilities >> capability.bit() & 1 == 1
    }
}

/// Parses the lines `Uid:` and `CapEff:` of `/proc/PID/status`. Other lines are ignored.
///
/// # Errors
/// [`Malformed`] if a line is missing or its value is not a number.
pub fn parse(text: &str) -> Result<Credentials, Malformed> {
    let (mut effective_uid, mut effective_capabilities) = (None, None);
    for (line, row) in text::lines(text) {
        match row.split_once(':') {
            Some(("Uid", ids)) => {
                let effective = ids.split_ascii_whitespace().nth(1);
                effective_uid = Some(text::number(effective, line, "the effective user id")?);
            }
            Some(("CapEff", mask)) => {
                effective_capabilities = Some(text::hexadecimal(Some(mask), line, "a mask of capabilities in base 16")?);
            }
            _ => {}
        }
    }
    match (effective_uid, effective_capabilities) {
        (Some(effective_uid), Some(effective_capabilities)) => Ok(Credentials { effective_uid, effective_capabilities }),
        _ => Err(Malformed::new(0, "end of file", "Uid and CapEff")),
    }
}

/// Reads the credentials of this process from `/proc/self/status`.
///
/// # Errors
/// [`crate::Error::Parse`]; [`crate::Error::Io`].
pub fn credentials(roots: &Roots) -> Result<Credentials> {
    let path = roots.proc.join("self/status");
    parse(&file::read(&path, file::SMALL)?).map_err(|malformed| malformed.at(&path))
}

/// The level of kernel lockdown (`kernel_lockdown(7)`). From `Integrity` on, debugfs is read-only or hidden; at
/// `Confidentiality` it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lockdown {
    /// No lockdown.
    None,
    /// Root cannot change the kernel.
    Integrity,
    /// Root can neither change the kernel nor read its confidential data.
    Confidentiality,
}

/// Parses `/sys/kernel/security/lockdown`, where brackets mark the current level:
/// `none [integrity] confidentiality`.
///
/// # Errors
/// [`Malformed`] if no known level is marked.
pub fn parse_lockdown(text: &str) -> Result<Lockdown, Malformed> {
    match text.split_ascii_whitespace().find(|word| word.starts_with('[')) {
        Some("[none]") => Ok(Lockdown::None),
        Some("[integrity]") => Ok(Lockdown::Integrity),
        Some("[confidentiality]") => Ok(Lockdown::Confidentiality),
        _ => Err(Malformed::new(1, text.trim(), "[none], [integrity] or [confidentiality]")),
    }
}

/// Reads the current lockdown level; `None` if the kernel has no lockdown module or securityfs is not mounted.
///
/// # Errors
/// [`crate::Error::Parse`]; [`crate::Error::Io`].
pub fn lockdown(roots: &Roots) -> Result<Option<Lockdown>> {
    let path = roots.sys.join("kernel/security/lockdown");
    match file::read_optional(&path, file::SMALL)? {
        Some(text) => parse_lockdown(&text).map(Some).map_err(|malformed| malformed.at(&path)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str =
        "Name:\tcat\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapPrm:\t000001fffeffffff\nCapEff:\t0000000000a80000\n";

    #[test]
    fn the_effective_user_and_capabilities_are_parsed() {
        let (_keep, roots) = tree(&[("proc/self/status", CAPTURED)]);
        let who = credentials(&roots).unwrap();
        assert!(who.is_root());
        for capability in [Capability::SysPtrace, Capability::SysAdmin, Capability::SysNice] {
            assert!(who.has(capability), "{}", capability.name());
            let none = Credentials { effective_capabilities: !(1 << capability.bit()), ..who };
            assert!(!none.has(capability), "{}", capability.name());
        }
        cut_everywhere(CAPTURED, parse);
        assert!(credentials(&Roots::host()).is_ok());
    }

    #[test]
    fn the_level_in_brackets_is_the_current_one() {
        let check = |text, expected| assert_eq!(parse_lockdown(text).ok(), expected, "{text:?}");
        check("[none] integrity confidentiality\n", Some(Lockdown::None));
        check("none [integrity] confidentiality\n", Some(Lockdown::Integrity));
        check("none integrity [confidentiality]\n", Some(Lockdown::Confidentiality));
        check("none integrity confidentiality\n", None);
        check("", None);
        let (_keep, roots) = tree(&[("proc/self/status", "")]);
        assert_eq!(lockdown(&roots).unwrap(), None);
    }
}
