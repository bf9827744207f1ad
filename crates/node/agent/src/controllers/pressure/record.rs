//! The journal record of one period of pressure-driven offloading, its replay, and its words.

use policy::balance::{self, AnonFileBias};
use policy::pressure::{self, Decision, Hold};
use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Bytes, UnixMillis};

use crate::controllers::replay::Replay;
use crate::controllers::words;
use crate::memory::JobMemory;

/// Memory reclaimed from a job between two decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// What the kernel was asked for.
    pub asked: Bytes,
    /// Anonymous memory that left DRAM.
    pub anon: Bytes,
    /// Page cache that left DRAM.
    pub file: Bytes,
}

/// One period of one job under pressure-driven offloading: observed, decided, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PressureRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the pressure controller observed.
    pub input: pressure::Input,
    /// What it decided.
    pub step: pressure::Step,
    /// What the balance between anonymous and file memory observed.
    pub balance: balance::Input,
    /// The anon/file bias that it decided.
    pub lean: AnonFileBias,
    /// What was reclaimed since the previous decision.
    pub reclaimed: Reclaimed,
    /// Where the job's memory is.
    pub memory: JobMemory,
}

/// Parameters and state of a job's pressure controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureStart {
    /// The controller's parameters.
    pub params: pressure::Params,
    /// Its state before the next period.
    pub state: pressure::State,
    /// The state of the balance between anonymous and file memory.
    pub balance: balance::State,
}

impl Replay for PressureStart {
    type Record = PressureRecord;

    fn replay(&mut self, record: &PressureRecord, _: &Thresholds) -> bool {
        let (state, step) = pressure::step(&self.params, &self.state, &record.input);
        let (balance, lean) = balance::step(&self.balance, &record.balance);
        (self.state, self.balance) = (state, balance);
        step == record.step && lean == record.lean
    }
}

/// A decision of both controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// What the pressure controller decided, with the stalls that it is based on.
    pub step: pressure::Step,
    /// The anon/file bias.
    pub lean: AnonFileBias,
}

impl Period {
    /// Whether the job's stall was at its target.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        matches!(self.step.decision, Decision::Hold { reason: Hold::MemoryStall | Hold::IoStall | Hold::Refaults })
    }

    /// The decision in words, with the numbers that it is based on.
    #[must_use]
    pub fn explain(&self) -> String {
        let step = &self.step;
        let bias = match self.lean {
            AnonFileBias::FileOnly => "page cache only".to_owned(),
            AnonFileBias::Swappiness(swappiness) => format!("swappiness {swappiness}"),
        };
        let (memory, io, refaults) = (step.memory_stall, step.io_stall, step.refault_stall);
        let stalls = format!("stalled {memory} for memory, {io} for I/O, {refaults} by refaults");
        // A stall beyond the target is paid off over the following periods, which may have no stall of their own.
        let carried = format!("{stalls}, including what earlier periods exceeded");
        match step.decision {
            Decision::Reclaim { bytes } => format!("reclaim {bytes}, {bias}: {stalls}"),
            Decision::Hold { reason } => match reason {
                Hold::NoHistory => "hold: no earlier period to compare with".to_owned(),
                Hold::CounterWentBack => "hold: a counter of the kernel decreased".to_owned(),
                Hold::WarmingUp => "hold: warming up".to_owned(),
                Hold::MemoryStall => format!("hold: {carried}: the memory stall is at its target"),
                Hold::IoStall => format!("hold: {carried}: the I/O stall is at its target"),
                Hold::Refaults => format!("hold: {carried}: refaults cost as much as the target allows"),
                Hold::AtFloor => "hold: the job has its minimum size".to_owned(),
                Hold::Vetoed(veto) => format!("hold: {}", words::veto(veto)),
            },
        }
    }
}
