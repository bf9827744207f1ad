//! Description of a guest that QEMU starts.

use serde::{Deserialize, Serialize};

use super::options;

const ARGUMENTS_MAX: usize = 256;

/// Options that are added to QEMU's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Options and their values, such as `-drive` and `file=redis-1.qcow2,if=virtio`. Memory, NUMA nodes, processors,
    /// monitor and process belong to the host: only listed options are allowed.
    #[serde(default)]
    pub arguments: Vec<String>,
}

impl Guest {
    /// Checks the options.
    ///
    /// # Errors
    /// The first option that is not allowed, and those that are.
    pub fn check(&self) -> Result<(), String> {
        if self.arguments.len() > ARGUMENTS_MAX {
            return Err(format!("qemu.arguments has {} words; give at most {ARGUMENTS_MAX}", self.arguments.len()));
        }
        options::check(&self.arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_limited_and_checked() {
        let check = |arguments: Vec<String>| Guest { arguments }.check();
        assert_eq!(check(vec!["-no-reboot".to_owned(); ARGUMENTS_MAX]), Ok(()));
        assert!(check(vec!["-no-reboot".to_owned(); ARGUMENTS_MAX + 1]).unwrap_err().contains("at most 256"));
        assert!(check(vec!["--m".to_owned(), "8G".to_owned()]).unwrap_err().contains("not allowed"));
    }
}
