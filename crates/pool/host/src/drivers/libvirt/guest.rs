//! Description of a guest that libvirt starts.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};

/// Largest domain XML, in bytes.
const DOMAIN_BYTES_MAX: usize = 256 << 10;

/// A domain from which the guest's domain is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Domain XML, as `virsh define` takes it. Name, memory, processors and NUMA cells are replaced.
    pub domain: String,
}

impl Guest {
    /// Reads the `[libvirt]` table of a guest's file: `domain` is the path of the XML file, relative to `directory`.
    ///
    /// # Errors
    /// The key and the cause.
    pub(in crate::drivers) fn read<'de, D>(table: D, directory: &Path) -> Result<Self, String>
    where
        D: Deserializer<'de>,
        D::Error: Display,
    {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            domain: PathBuf,
        }
        let Table { domain } = Table::deserialize(table).map_err(|error| error.to_string())?;
        let path = directory.join(domain);
        let domain = std::fs::read_to_string(&path).map_err(|error| format!("domain: cannot read {}: {error}", path.display()))?;
        Ok(Self { domain })
    }

    /// Checks the size of the domain.
    ///
    /// # Errors
    /// The size found and the limit.
    pub fn check(&self) -> Result<(), String> {
        let bytes = self.domain.len();
        if bytes > DOMAIN_BYTES_MAX {
            return Err(format!("libvirt.domain has {bytes} bytes; give at most {DOMAIN_BYTES_MAX}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_limited() {
        let check = |bytes| Guest { domain: " ".repeat(bytes) }.check();
        assert_eq!(check(DOMAIN_BYTES_MAX), Ok(()));
        assert!(check(DOMAIN_BYTES_MAX + 1).unwrap_err().contains("at most 262144"));
    }
}
