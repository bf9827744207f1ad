//! Description of a guest that QEMU starts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use settings::{Document, Invalid, Unit};

use super::options;

const ARGUMENTS_MAX: usize = 256;
const FILES_MAX: usize = 64;

settings::tables! {
    /// The guest on a host that starts QEMU. Excludes `[libvirt]`.
    pub(in crate::drivers) struct Table = "qemu", Optional {
        arguments: Vec<String> = Unit::Texts, "",
            "Options and their values, added to QEMU's command line, such as `[\"-drive\", \"file=redis-1.qcow2,if=virtio\"]`. Only options of boot, disks, networks and consoles are allowed.";
        files: Vec<String> = Unit::Texts, "",
            "Disks and other files, by absolute path. The host opens them, and `arguments` name the first as `/dev/fdset/1`, the second as `/dev/fdset/2`, and so on: the guest's process needs no access to their directories.";
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
    /// Files that the host opens, by absolute path; `/dev/fdset/1` in `arguments` is the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PathBuf>,
}

impl Guest {
    /// Reads the `[qemu]` table of a guest file.
    pub(in crate::drivers) fn read(document: &Document) -> Self {
        let Table { arguments, files } = document.get();
        Self { arguments, files: files.into_iter().map(PathBuf::from).collect() }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// The key, the first option that is not allowed, and those that are.
    pub fn check(&self) -> Result<(), (&'static str, Invalid)> {
        const KEY: &str = "arguments";
        if self.files.len() > FILES_MAX {
            let message = format!("{} files, more than the limit", self.files.len());
            return Err(("files", Invalid::new(message, format!("name at most {FILES_MAX}"))));
        }
        if let Some(path) = self.files.iter().find(|path| !path.is_absolute()) {
            return Err(("files", Invalid::new(format!("{} is not an absolute path", path.display()), "begin it with /")));
        }
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
        let check = |arguments: Vec<String>| Guest { arguments, files: Vec::new() }.check();
        assert_eq!(check(vec!["-no-reboot".to_owned(); ARGUMENTS_MAX]), Ok(()));
        assert!(check(vec!["-no-reboot".to_owned(); ARGUMENTS_MAX + 1]).unwrap_err().1.to_string().contains("at most 256"));
        assert!(check(vec!["--m".to_owned(), "8G".to_owned()]).unwrap_err().1.to_string().contains("not allowed"));
        let files = |files: Vec<PathBuf>| Guest { arguments: Vec::new(), files }.check();
        assert_eq!(files(vec!["/images/a".into()]), Ok(()));
        assert!(files(vec!["a".into()]).unwrap_err().1.to_string().contains("absolute"));
        assert!(files(vec!["/a".into(); FILES_MAX + 1]).unwrap_err().1.to_string().contains("at most 64"));
    }
}
