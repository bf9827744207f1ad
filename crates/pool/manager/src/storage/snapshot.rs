//! A copy of all rows as one text: how a member of a group gets the ledger from another one.

use redb::{Database, Durability};

use super::rows::{self, Rows};
use super::{ABOUT, About, EMCS, Error, HOSTS, SLICES, Storage, Stored, VMS, json};
use crate::chain::Chain;

impl Storage {
    /// Returns all rows.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn export(&mut self) -> Result<Vec<u8>, Error> {
        self.database()?;
        let read = self.guarded(|| self.database.as_ref().map_or(Ok(None), rows::read))?.map_err(|error| self.error(error))?;
        Ok(json(&read.unwrap_or_default()))
    }

    /// Replaces all rows by those of a copy, in one transaction, and returns them. The chain stays this file's own.
    ///
    /// # Errors
    /// [`enum@Error`]: among others, the copy is not one.
    pub(crate) fn replace(&mut self, copy: &[u8]) -> Result<Stored, Error> {
        let path = self.path.clone();
        let invalid = |error: serde_json::Error| Error::Row { path: path.clone(), row: "the copy".to_owned(), why: error.to_string() };
        let rows: Rows = serde_json::from_slice(copy).map_err(invalid)?;
        let (about, stored) = rows.stored(&path)?;
        let chain = self.chain.next(rows.hash(), &about.fields());
        let about = About { chain, ..about };
        self.database()?;
        let written = self.guarded(|| self.database.as_ref().map_or(Ok(()), |database| write(database, &about, &rows)));
        let written = written.and_then(|written| written.map_err(|error| self.error(error)));
        if written.is_err() {
            self.database = None;
        }
        written?;
        self.position.clone_from(&stored.position);
        self.marked(chain)?;
        Ok(stored)
    }

    /// Writes the mark of a chain that is on disk.
    pub(super) fn marked(&mut self, chain: Chain) -> Result<(), Error> {
        (self.chain, self.is_marked) = (chain, false);
        self.mark.write(&chain.mark())?;
        self.is_marked = true;
        Ok(())
    }
}

fn write(database: &Database, about: &About, rows: &Rows) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    for table in [EMCS, HOSTS] {
        transaction.delete_table(table)?;
    }
    transaction.delete_table(SLICES)?;
    transaction.delete_table(VMS)?;
    for (table, rows) in [(EMCS, &rows.emcs), (HOSTS, &rows.hosts)] {
        let mut table = transaction.open_table(table)?;
        for (number, row) in rows {
            table.insert(number, row.as_bytes())?;
        }
    }
    {
        let mut slices = transaction.open_table(SLICES)?;
        for (slice, row) in &rows.slices {
            slices.insert((slice.emc.0, slice.index), row.as_bytes())?;
        }
        let mut vms = transaction.open_table(VMS)?;
        for (vm, row) in &rows.vms {
            vms.insert(vm, row.as_bytes())?;
        }
        transaction.open_table(ABOUT)?.insert("pool", json(about).as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}
