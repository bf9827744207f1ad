//! Description of a guest that libvirt starts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use settings::{Document, Group as _, Invalid, Unit};

/// Largest domain XML, in bytes.
const DOMAIN_BYTES_MAX: usize = 256 << 10;

settings::tables! {
    /// The guest on a host that uses libvirt. Excludes `[qemu]`.
    pub(in crate::drivers) struct Table = "libvirt", Optional {
        domain: PathBuf = Unit::RelativePath, required "redis-1.xml",
            "A file of domain XML, as `virsh define` takes it. Name, memory, processors and NUMA cells are replaced.";
    }
}

/// A domain from which the guest's domain is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Domain XML, as `virsh define` takes it. Name, memory, processors and NUMA cells are replaced.
    pub domain: String,
}

impl Guest {
    /// Reads the `[libvirt]` table of a guest file, and the file of domain XML that it names.
    pub(in crate::drivers) fn read(document: &mut Document) -> Self {
        let section = document.section(&Table::TABLE);
        let path = document.resolve(&Table::read(&section).domain);
        let domain = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            // A missing key has been reported.
            if section.sets("domain") {
                let message = format!("cannot read {}: {error}", path.display());
                document.report(section.place("domain"), Invalid::new(message, "name a readable file of domain XML"));
            }
            String::new()
        });
        Self { domain }
    }

    /// Checks the size of the domain.
    ///
    /// # Errors
    /// The key, the size found and the limit.
    pub fn check(&self) -> Result<(), (&'static str, Invalid)> {
        let bytes = self.domain.len();
        if bytes > DOMAIN_BYTES_MAX {
            let message = format!("the file has {bytes} bytes, more than the limit");
            return Err(("domain", Invalid::new(message, format!("write at most {DOMAIN_BYTES_MAX}"))));
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
        assert!(check(DOMAIN_BYTES_MAX + 1).unwrap_err().1.to_string().contains("at most 262144"));
    }
}
