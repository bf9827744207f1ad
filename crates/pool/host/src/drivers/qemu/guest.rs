//! Description of a guest that QEMU starts.

use serde::{Deserialize, Serialize};
use settings::{Document, Invalid, Unit};

use super::options;

const ARGUMENTS_MAX: usize = 256;

settings::tables! {
    /// The guest on a host that starts QEMU. Excludes `[libvirt]`.
    pub(in crate::drivers) struct Table = "qemu", Optional {
        arguments: Vec<String> = Unit::Texts, "",
            "Options and their values, added to QEMU's command line, such as `[\"-drive\", \"file=redis-1.qcow2,if=virtio\"]`. Only options of boot, disks, networks and consoles are allowed.";
    }
}

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
    /// Reads the `[qemu]` table of a guest file.
    pub(in crate::drivers) fn read(document: &Document) -> Self {
        let Table { arguments } = document.get();
        Self { arguments }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// The key, the first option that is not allowed, and those that are.
    pub fn check(&self) -> Result<(), (&'static str, Invalid)> {
        const KEY: &str = "arguments";
        if self.arguments.len() > ARGUMENTS_MAX {
            let message = format!("{} words, more than the limit", self.arguments.len());
            return Err((KEY, Invalid::new(message, format!("write at most {ARGUMENTS_MAX}"))));
        }
        options::check(&self.arguments).map_err(|invalid| (KEY, invalid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_limited_and_checked() {
        let check = |arguments: Vec<String>| Guest { arguments }.check();
        assert_eq!(check(vec!["-no-reboot".to_owned(); ARGUMENTS_MAX]), Ok(()));
        assert!(check(vec!["-no-reboot".to_owned(); ARGUMENTS_MAX + 1]).unwrap_err().1.to_string().contains("at most 256"));
        assert!(check(vec!["--m".to_owned(), "8G".to_owned()]).unwrap_err().1.to_string().contains("not allowed"));
    }
}
