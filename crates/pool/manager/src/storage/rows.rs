//! All rows of the ledger's file, as they are stored.

use std::path::Path;

use pool::{EmcId, Lease, Record, SliceId, VmId};
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ABOUT, About, EMCS, Error, HOSTS, SCHEMA, SLICES, Stored, VMS, VmRow};
use crate::chain::Hash;

/// Rows as stored.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Rows {
    pub(super) about: String,
    pub(super) emcs: Vec<(u16, String)>,
    pub(super) slices: Vec<(SliceId, String)>,
    pub(super) vms: Vec<(u64, String)>,
    pub(super) hosts: Vec<(u16, String)>,
}

/// Reads all rows; `None` if nothing was written yet.
pub(super) fn read(database: &Database) -> Result<Option<Rows>, redb::Error> {
    let transaction = database.begin_read()?;
    let about = match transaction.open_table(ABOUT) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        about => about?,
    };
    let Some(about) = about.get("pool")? else { return Ok(None) };
    let mut rows = Rows { about: text(about.value()), ..Rows::default() };
    for row in transaction.open_table(EMCS)?.iter()? {
        let (emc, row) = row?;
        rows.emcs.push((emc.value(), text(row.value())));
    }
    for row in transaction.open_table(SLICES)?.iter()? {
        let (place, row) = row?;
        let (emc, index) = place.value();
        rows.slices.push((SliceId { emc: EmcId(emc), index }, text(row.value())));
    }
    for row in transaction.open_table(VMS)?.iter()? {
        let (vm, row) = row?;
        rows.vms.push((vm.value(), text(row.value())));
    }
    for row in transaction.open_table(HOSTS)?.iter()? {
        let (host, row) = row?;
        rows.hosts.push((host.value(), text(row.value())));
    }
    Ok(Some(rows))
}

/// A row is JSON. One that is no text is damaged, and is refused as no JSON.
fn text(row: &[u8]) -> String {
    String::from_utf8_lossy(row).into_owned()
}

impl Rows {
    /// The hash of all rows but the chain's own.
    pub(super) fn hash(&self) -> Hash {
        let mut all = Hash::default();
        let mut row = |table: &str, key: &[u8], value: &str| all.toggle(Hash::row(table, key, value.as_bytes()));
        self.emcs.iter().for_each(|(emc, value)| row(EMCS.name(), &<u16 as Value>::as_bytes(emc), value));
        for (slice, value) in &self.slices {
            row(SLICES.name(), &<(u16, u32) as Value>::as_bytes(&(slice.emc.0, slice.index)), value);
        }
        self.vms.iter().for_each(|(vm, value)| row(VMS.name(), &<u64 as Value>::as_bytes(vm), value));
        self.hosts.iter().for_each(|(host, value)| row(HOSTS.name(), &<u16 as Value>::as_bytes(host), value));
        all
    }

    /// Parses the rows, which are in the order of their keys. A missing row is an error.
    pub(super) fn stored(&self, path: &Path) -> Result<(About, Stored), Error> {
        let invalid = |row: String, why: &str| Error::Row { path: path.to_owned(), row, why: why.to_owned() };
        let about: About = parse(path, || "about".to_owned(), &self.about)?;
        let About { schema, slice_bytes, next_vm, ref position, .. } = about;
        if schema != SCHEMA {
            return Err(Error::Schema { path: path.to_owned(), found: schema });
        }
        let mut stored = Stored { slice_bytes, next_vm, position: position.clone(), ..Stored::default() };
        for (emc, row) in &self.emcs {
            if usize::from(*emc) != stored.kept.works.len() {
                return Err(invalid(format!("EMC {emc}"), "a row before it is missing"));
            }
            stored.kept.works.push(parse(path, || format!("EMC {emc}"), row)?);
            stored.kept.slices.push(Vec::new());
        }
        for (slice, row) in &self.slices {
            let name = || format!("slice {}/{}", slice.emc.0, slice.index);
            let of = stored.kept.slices.get_mut(usize::from(slice.emc.0)).filter(|of| of.len() == slice.index as usize);
            let record: Record = parse(path, name, row)?;
            of.ok_or_else(|| invalid(name(), "a row before it is missing"))?.push(record);
        }
        for (id, row) in &self.vms {
            let VmRow { vm, emc, slices } = parse(path, || format!("VM {id}"), row)?;
            stored.kept.leases.insert(VmId(*id), Lease { host: vm.host, emc, slices });
            stored.vms.insert(VmId(*id), vm);
        }
        for (id, row) in &self.hosts {
            if usize::from(*id) != stored.hosts.len() {
                return Err(invalid(format!("host {id}"), "a row before it is missing"));
            }
            stored.hosts.push(parse(path, || format!("host {id}"), row)?);
        }
        Ok((about, stored))
    }
}

fn parse<T: DeserializeOwned>(path: &Path, row: impl Fn() -> String, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Row { path: path.to_owned(), row: row(), why: error.to_string() })
}
