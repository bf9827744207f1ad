//! The ledger from its stored rows.

use pool::{Broken, Ns, Pool};

use crate::ledger::{Host, Ledger};
use crate::settings::Settings;
use crate::storage::Stored;

/// Builds the ledger from its stored rows and the configuration.
pub(crate) fn build_ledger(settings: &Settings, stored: Stored, now: Ns) -> Result<Ledger, String> {
    let Stored { slice_bytes, next_vm, kept, mut hosts, vms, .. } = stored;
    if slice_bytes != settings.slice_size {
        return Err(format!(
            "its slices have {} bytes, the configuration has {}; the slice size of a pool cannot change",
            slice_bytes.0, settings.slice_size.0
        ));
    }
    // Known hosts keep their numbers; new ones get the next.
    for name in &settings.hosts {
        if !hosts.iter().any(|host| host.name == *name) {
            hosts.push(Host { name: name.clone(), ..Host::default() });
        }
    }
    let count = u16::try_from(hosts.len()).map_err(|_| format!("{} hosts have used the pool, more than supported", hosts.len()))?;
    let pool = Pool::restore(settings.pool(count), kept).map_err(|broken: Broken| broken.to_string())?;
    Ok(Ledger::new(pool, hosts, vms, next_vm, settings.terms(), settings.layout(), now))
}
