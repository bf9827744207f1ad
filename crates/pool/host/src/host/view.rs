//! Views of a host and its guests for users.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use super::models::{Models, Outcome};
use super::settings::{Refused, Totals};
use super::table::{DAMAGED, Host};
use crate::monitor::Verdict;
use crate::vm::{Record, State};

/// Summary of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// Host name.
    pub host: String,
    /// Local memory for guests.
    pub local_bytes: Bytes,
    /// Local memory that guests occupy.
    pub local_used_bytes: Bytes,
    /// Totals since the host was set up.
    pub totals: Totals,
    /// The pool manager's last error; `None` if its last answer was a success.
    pub pool_error: Option<String>,
    /// The model of untouched memory; `None` if there is none.
    #[serde(default)]
    pub model: Option<ModelView>,
    /// Guests by name.
    pub guests: Vec<Line>,
    /// Guests whose state is damaged, and why.
    #[serde(default)]
    pub damaged: BTreeMap<String, String>,
}

/// The model of untouched memory in use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelView {
    /// The end of its training, in seconds by the clock of requests.
    pub trained_until: i64,
    /// The share of guests that may touch the pool memory that it gives them.
    pub target_ppm: RatioPpm,
    /// Guests that it gave pool memory, and that have ended.
    pub guests: u32,
    /// Those that touched it.
    pub guests_touched: u32,
    /// Whether it is left because too many did.
    pub failed: bool,
}

/// Summary of a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Guest name.
    pub name: String,
    /// Current state.
    pub state: State,
    /// The operation in progress.
    pub busy: Option<String>,
    /// Process id.
    pub pid: Option<i32>,
    /// Virtual cores.
    pub cores: u32,
    /// Local memory.
    pub local_bytes: Bytes,
    /// Pool memory.
    pub pool_bytes: Bytes,
    /// Slices that its process maps.
    #[serde(default)]
    pub slices: u64,
    /// The hot part of its pool memory, which was moved home.
    #[serde(default)]
    pub home_bytes: Bytes,
    /// Pool memory that it had touched at the last sample.
    pub pool_touched_bytes: Option<Bytes>,
    /// Share of pool memory in the memory that it accessed between the last two samples.
    pub pool_accessed_ratio: Option<f64>,
    /// The monitor's last verdict.
    pub verdict: Option<Verdict>,
    /// Whether it was moved to local memory.
    pub mitigated: bool,
}

impl Host {
    /// The host and all of its guests.
    #[must_use]
    pub fn list(&self) -> List {
        let damaged = self.damaged();
        let model = self.models().and_then(|models| view_of(&models));
        let table = self.table();
        let guests = table.guests.values().map(|guest| line(&guest.record, guest.busy)).collect();
        List {
            host: self.settings.name.clone(),
            local_bytes: self.settings.local,
            local_used_bytes: table.local_used(),
            totals: table.totals,
            pool_error: table.pool_error.clone(),
            model,
            guests,
            damaged,
        }
    }

    /// The record of one guest.
    ///
    /// # Errors
    /// There is no guest of that name.
    pub fn explain(&self, name: &str) -> Result<Record, Refused> {
        let table = self.table();
        if let Some(why) = table.damaged.get(name) {
            return Err(Refused(format!("guest {name}: {why}. {DAMAGED}")));
        }
        table.guests.get(name).map(|guest| guest.record.clone()).ok_or_else(|| Refused(format!("there is no guest {name}")))
    }
}

fn view_of(models: &Models) -> Option<ModelView> {
    let model = models.predictor().untouched()?;
    let Outcome { guests, touched } = models.outcome();
    let failed = models.has_failed();
    Some(ModelView { trained_until: model.trained_until(), target_ppm: model.target(), guests, guests_touched: touched, failed })
}

fn line(record: &Record, busy: Option<&str>) -> Line {
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let ratio = record.usage.and_then(|usage| {
        let all = usage.pool_accessed_bytes + usage.local_accessed_bytes;
        (all > Bytes::ZERO).then(|| usage.pool_accessed_bytes.0 as f64 / all.0 as f64)
    });
    Line {
        name: record.request.name.clone(),
        state: record.state,
        busy: busy.map(str::to_owned),
        pid: record.process.map(|process| process.pid),
        cores: record.request.vm.cores,
        local_bytes: record.local_bytes(),
        pool_bytes: record.pool_bytes(),
        slices: record.mapped.len() as u64,
        home_bytes: record.moved_home(),
        pool_touched_bytes: record.usage.map(|usage| usage.pool_touched_bytes),
        pool_accessed_ratio: ratio,
        verdict: record.verdict,
        mitigated: record.mitigated,
    }
}
