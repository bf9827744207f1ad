//! What a host shows of itself.

use serde::{Deserialize, Serialize};

use super::{Host, Refused, Totals};
use crate::monitor::Verdict;
use crate::vm::{Record, State};

/// A host at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// Its name.
    pub host: String,
    /// Memory that guests may have beside the pool's, and have.
    pub local_bytes: u64,
    /// Of that, what they hold.
    pub local_used_bytes: u64,
    /// What the host has seen.
    pub totals: Totals,
    /// Why the pool cannot be used now; none while all is well.
    pub trouble: Option<String>,
    /// Its guests, by name.
    pub guests: Vec<Line>,
}

/// A guest at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: State,
    /// What is being done to it just now.
    pub busy: Option<String>,
    /// Its process.
    pub pid: Option<i32>,
    /// Its cores.
    pub cores: u32,
    /// Its memory beside its cores.
    pub local_bytes: u64,
    /// Its memory in the pool.
    pub pool_bytes: u64,
    /// What it touched of that, at the last look.
    pub pool_touched_bytes: Option<u64>,
    /// Of the memory that it accessed between the last two looks, the share that lies in the pool.
    pub pool_accessed_ratio: Option<f64>,
    /// What the monitor says.
    pub verdict: Option<Verdict>,
    /// Whether it was moved to local memory.
    pub repaired: bool,
}

impl Host {
    /// All guests.
    #[must_use]
    pub fn list(&self) -> List {
        let table = self.table();
        let guests = table.guests.values().map(|guest| line(&guest.record, guest.busy)).collect();
        List {
            host: self.settings.name.clone(),
            local_bytes: self.settings.local_bytes,
            local_used_bytes: table.local_bytes(),
            totals: table.totals,
            trouble: table.trouble.clone(),
            guests,
        }
    }

    /// Everything about one guest.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn explain(&self, name: &str) -> Result<Record, Refused> {
        let table = self.table();
        table.guests.get(name).map(|guest| guest.record.clone()).ok_or_else(|| Refused(format!("no guest is named {name}")))
    }
}

fn line(record: &Record, busy: Option<&str>) -> Line {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ratio = record.usage.and_then(|usage| {
        let all = usage.pool_accessed_bytes + usage.local_accessed_bytes;
        (all > 0).then(|| usage.pool_accessed_bytes as f64 / all as f64)
    });
    Line {
        name: record.request.name.clone(),
        state: record.state,
        busy: busy.map(str::to_owned),
        pid: record.process.map(|process| process.pid),
        cores: record.request.vm.cores,
        local_bytes: record.local_bytes(),
        pool_bytes: record.pool_bytes(),
        pool_touched_bytes: record.usage.map(|usage| usage.pool_touched_bytes),
        pool_accessed_ratio: ratio,
        verdict: record.verdict,
        repaired: record.repaired,
    }
}
