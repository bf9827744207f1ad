//! A pool, as its manager reports it, in the shape of the page: hosts with their leases, guests with their slices, the map of
//! all slices, and what is wrong.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use ::manager::api::{PoolStatus, SliceList, SliceState, SliceStatus};
use ::manager::client::Error;
use anyhow::{Result, anyhow};
use serde::Serialize;
use serde_json::{Value, json};

use crate::pool::status::Reach;

/// The most guests that are listed: those with most slices.
const GUESTS_MAX: usize = 10_000;

/// The slices of one controller, one letter and one guest each.
#[derive(Debug, Serialize)]
struct Map<'a> {
    emc: u16,
    works: bool,
    /// One letter for each slice: free, online, taken offline (`t`), stuck, being zeroed, failed (`x`), and `-` without a report.
    states: String,
    /// For each slice: an index of `hosts`.
    hosts: Vec<Option<usize>>,
    /// For each slice: the guest.
    guests: Vec<Option<&'a str>>,
}

/// A guest with pool memory, which it has as a node without CPUs.
#[derive(Debug, Serialize)]
struct Guest<'a> {
    vm: &'a str,
    /// An index of `hosts`.
    host: Option<usize>,
    emc: u16,
    slices: u64,
    /// Slices at a controller that has failed.
    failed: u64,
}

/// Reads both tables of a manager: two requests, which change nothing.
pub(crate) fn read(reach: &Reach) -> Result<Value> {
    let client = reach.client()?;
    let url = reach.url();
    let advise = |error: Error| {
        anyhow!("{error}; check --pool, --identity, and that the manager runs: `thermocline pool status --manager {url}` asks the same")
    };
    let (status, slices) = (client.pool().map_err(advise)?, client.slices().map_err(advise)?);
    Ok(shape(url, &status, &slices))
}

fn shape(url: &str, status: &PoolStatus, list: &SliceList) -> Value {
    let index: HashMap<&str, usize> = status.hosts.iter().enumerate().map(|(at, host)| (host.host.as_str(), at)).collect();
    let guests = guests(list, &index);
    let listed = guests.len().min(GUESTS_MAX);
    json!({
        "manager": url,
        "slice_bytes": status.slice_bytes,
        "slices": status.slices,
        "grantable": status.grantable,
        "buffer_slices": status.buffer_slices,
        "emcs": status.emcs,
        "hosts": status.hosts,
        "guests": guests.get(..listed),
        "guests_left_out": guests.len() - listed,
        "maps": maps(status, list, &index),
        "faults": faults(status),
    })
}

fn letter(state: SliceState) -> char {
    match state {
        SliceState::Free => 'f',
        SliceState::Online => 'o',
        SliceState::Offlining => 't',
        SliceState::Stuck => 's',
        SliceState::Scrubbing => 'z',
        SliceState::Failed => 'x',
    }
}

fn maps<'a>(status: &PoolStatus, list: &'a SliceList, index: &HashMap<&str, usize>) -> Vec<Map<'a>> {
    let mut of: BTreeMap<u16, BTreeMap<u32, &SliceStatus>> = BTreeMap::new();
    for slice in &list.slices {
        of.entry(slice.emc).or_default().insert(slice.index, slice);
    }
    let map = |(emc, slices): (u16, BTreeMap<u32, &'a SliceStatus>)| Map {
        emc,
        works: status.emcs.iter().find(|found| found.emc == emc).is_none_or(|found| found.works),
        states: slices.values().map(|slice| letter(slice.state)).collect(),
        hosts: slices.values().map(|slice| index.get(slice.host.as_deref()?).copied()).collect(),
        guests: slices.values().map(|slice| slice.vm.as_deref()).collect(),
    };
    of.into_iter().map(map).collect()
}

/// The guests, those with most slices first.
fn guests<'a>(list: &'a SliceList, index: &HashMap<&str, usize>) -> Vec<Guest<'a>> {
    let mut of: BTreeMap<(Option<&str>, &str), Guest<'a>> = BTreeMap::new();
    for slice in &list.slices {
        let Some(vm) = slice.vm.as_deref() else { continue };
        let host = slice.host.as_deref();
        let guest = of.entry((host, vm)).or_insert_with(|| Guest {
            vm,
            host: host.and_then(|host| index.get(host).copied()),
            emc: slice.emc,
            slices: 0,
            failed: 0,
        });
        guest.slices += 1;
        guest.failed += u64::from(slice.state == SliceState::Failed);
    }
    let mut guests: Vec<_> = of.into_values().collect();
    guests.sort_by_key(|guest| Reverse(guest.slices));
    guests
}

/// What is wrong, each with what to do.
fn faults(status: &PoolStatus) -> Vec<Value> {
    let fault = |what: String, remedy: &str| json!({ "what": what, "remedy": remedy });
    let mut faults = Vec::new();
    if let Some(error) = &status.ledger_error {
        faults.push(fault(format!("The pool accepts no changes: {error}"), "Make the ledger's disk writable; see the manager's log."));
    }
    for emc in status.emcs.iter().filter(|emc| !emc.works) {
        let remedy = format!("Guests with memory on it are lost. After its replacement: thermocline pool emc repaired {}.", emc.emc);
        faults.push(fault(format!("EMC {} has failed, with {} slices", emc.emc, emc.slices.failed), &remedy));
    }
    for host in status.hosts.iter().filter(|host| host.slices.0 > 0 && host.lease_left_seconds.is_none()) {
        let what = format!("{} has {} slices and no lease", host.host, host.slices.0);
        faults.push(fault(what, "Check `thermocline pool host` on that host."));
    }
    for slice in &status.stuck {
        let holder = slice.host.as_deref().unwrap_or("a process without a lease");
        let why = slice.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let (emc, index, since, failures) = (slice.emc, slice.index, slice.since_seconds, slice.failures);
        let what = format!("Slice {emc}/{index} has been in release for {since:.0} s; {holder} holds it; {failures} attempts failed{why}");
        faults.push(fault(what, "End the process that uses the slice, on its host."));
    }
    faults
}
