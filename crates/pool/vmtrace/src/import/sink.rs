//! The destination of imported rows, with the options and the report of an import.

use std::collections::HashMap;

use serde::Serialize;
use units::Bytes;

use super::lifetimes::Lifetimes;
use crate::about::{CategoryNames, number_of};
use crate::error::Result;
use crate::sort::Sorter;
use crate::vm::Vm;

/// The supported formats and how their files begin.
pub(super) const FORMATS: &str = "\
supported are: Azure V1 and V2 `vmtable` (CSV of 11 columns without a header), Azure V1 by flavours (CSV with the header \
arrival_s,batch,flavor,cores,memory_gb,...), AzureTracesForPacking2020 (SQLite), GWA-T-12 Bitbrains (semicolons, one VM per \
file; a Parquet file of vm, ts, ...; or a summary with the header vm,n,t0,t1,...), lives.jsonl of pool hosts, scheduler.log of a \
scheduler; each also as .gz";

/// Invalid rows that are reported in full.
pub(super) const BAD_ROWS_REPORTED: usize = 10;

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Lifetimes for rows of sources without lifetimes.
    pub lifetimes: Option<Lifetimes>,
    /// Seed of random draws.
    pub seed: u64,
    /// Cores of a machine of AzureTracesForPacking2020, in which types are shares of a machine.
    pub machine_cores: u32,
    /// Memory of such a machine.
    pub machine_memory_bytes: Bytes,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The format of each source.
    pub formats: Vec<&'static str>,
    /// Rows read: VMs, or samples of VMs.
    pub rows: u64,
    /// VMs imported.
    pub vms: u64,
    /// VMs without a departure.
    pub still_running: u64,
    /// VMs whose lifetime was drawn.
    pub lifetimes_drawn: u64,
    /// The first invalid rows: file, line and problem.
    pub bad_rows: Vec<String>,
    /// The number of invalid rows.
    pub bad_rows_total: u64,
    /// Size of the output file.
    pub bytes: Bytes,
}

/// The destination of imported rows.
pub(super) struct Sink<'a> {
    pub(super) sorter: Sorter,
    pub(super) options: &'a Options,
    pub(super) names: CategoryNames,
    pub(super) random: fastrand::Rng,
    /// The last second of the trace, once a VM has been read.
    pub(super) ends: Option<i64>,
    pub(super) next_id: u64,
    pub(super) report: Report,
    pub(super) progress: &'a mut dyn FnMut(u64, u64),
    /// Numbers of customers by their name in the source.
    pub(super) customers: HashMap<String, u64>,
}

/// The largest number of distinct customers. Further customers share the last number; public traces have fewer than 10,000.
const CUSTOMERS_MAX: usize = 1 << 22;

impl Sink<'_> {
    /// Adds a VM and gives it the next id. A VM of a scheduler's log keeps its own. `last_seen` is the last second for which the
    /// source has data about it. `place` names the row in errors.
    pub(super) fn vm(&mut self, place: &dyn Fn() -> String, mut vm: Vm, last_seen: i64) -> Result<()> {
        if let Err(error) = vm.check() {
            self.bad(&format!("{}: {error}", place()));
            return Ok(());
        }
        if vm.recorded.is_none() {
            vm.id = self.next_id;
        }
        self.next_id = self.next_id.max(vm.id + 1);
        self.ends = Some(self.ends.map_or(last_seen, |ends| ends.max(last_seen)));
        self.report.vms += 1;
        self.report.still_running += u64::from(vm.departure.is_none());
        self.sorter.push(vm)
    }

    /// Counts an invalid row.
    pub(super) fn bad(&mut self, problem: &str) {
        self.report.bad_rows_total += 1;
        if self.report.bad_rows.len() < BAD_ROWS_REPORTED {
            self.report.bad_rows.push(problem.to_owned());
        }
    }

    /// Counts a row and reports the progress.
    pub(super) fn row(&mut self, done: u64, total: u64) {
        self.report.rows += 1;
        (self.progress)(done, total);
    }

    /// Returns the index of a type.
    pub(super) fn vm_type(&mut self, name: &str) -> Option<u16> {
        number_of(&mut self.names.vm_types, name)
    }

    /// Returns the index of a guest operating system.
    pub(super) fn guest_os(&mut self, name: &str) -> Option<u16> {
        number_of(&mut self.names.guest_os, name)
    }

    /// Returns the index of a region.
    pub(super) fn location(&mut self, name: &str) -> Option<u16> {
        number_of(&mut self.names.locations, name)
    }

    /// Returns the number of a customer.
    pub(super) fn customer(&mut self, name: &str) -> u64 {
        if let Some(&number) = self.customers.get(name) {
            return number;
        }
        let number = self.customers.len() as u64;
        if self.customers.len() < CUSTOMERS_MAX {
            self.customers.insert(name.to_owned(), number);
        }
        number
    }

    /// Draws the departure of a VM of a source without lifetimes. Returns `None` without [`Options::lifetimes`], or if the VM
    /// outlives the longest known lifetime.
    pub(super) fn drawn_departure(&mut self, vm_type: Option<u16>, arrival: i64) -> Option<i64> {
        let name = vm_type.and_then(|vm_type| self.names.vm_types.get(usize::from(vm_type)));
        let lifetime = self.options.lifetimes.as_ref()?.draw(name.map(String::as_str), self.random.f64());
        self.report.lifetimes_drawn += u64::from(lifetime.is_some());
        lifetime.map(|lifetime| arrival.saturating_add(lifetime))
    }
}
