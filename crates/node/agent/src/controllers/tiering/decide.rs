//! The whole decision where a job's swap-backed memory goes: whether it compresses, what may be written for it, and the tier.
//! Pure: the journal records the input, and a replay repeats it.

use policy::incompressible::{self, Sample, Stored, Verdict};
use policy::thresholds::Thresholds;
use policy::tiering::row::{Accounting, Row, reachable};
use policy::tiering::{self, Choice, Permitted, Tier, Why, may_write};
use policy::veto::Veto;
use serde::{Deserialize, Serialize};
use units::{Bytes, Millis, RatioPpm, UnixMillis};

use super::endurance::{Charges, EnduranceStart};
use crate::controllers::replay::Replay;

/// The compressed share of memory that does not compress.
const INCOMPRESSIBLE: RatioPpm = RatioPpm(1_000_000);

/// The tier that an operator chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorTier {
    /// Memory that compresses pages: zswap, or zram if the machine swaps to it and zswap is off.
    Zswap,
    /// The swap areas, past zswap.
    Swap,
    /// Memory that compresses pages, and writes back to a device what stays cold.
    Both,
}

/// Parameters and state of a job's tiering controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TieringStart {
    /// The operator's tier; `None` if policy `tiering` chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<OperatorTier>,
    /// Parameters of policy `tiering`.
    pub params: tiering::Params,
    /// Parameters of policy `incompressible`.
    pub incompressible: incompressible::Params,
    /// State of policy `incompressible`.
    pub state: incompressible::State,
    /// The job's write budget.
    pub writes: EnduranceStart,
    /// Compressed share of the job's cold pages, by the last sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressed: Option<RatioPpm>,
    /// The tier that the job has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
}

/// A test compression of a job's cold pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Pages tried, and those that did not shrink.
    pub sample: Sample,
    /// Compressed share of the pages.
    pub ratio: RatioPpm,
}

/// What one decision is based on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "recorded::Input")]
pub struct Input {
    /// Milliseconds since boot.
    pub now_ms: Millis,
    /// Bytes per page.
    pub page_bytes: u64,
    /// Whether the machine has far memory with free space.
    pub far_memory: bool,
    /// Whether only zswap's pool is full.
    pub pool_full: bool,
    /// What zswap stored of the job's last offloads.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stored: Stored,
    /// The sample taken at this decision, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// What was charged to the job's write budget since the previous decision.
    #[serde(flatten)]
    pub charged: Charges,
    /// What the machine offers; the endurance of a row is what the machine's write budget permits.
    pub rows: Vec<Row>,
    /// What the job's stall target permits in each tier, by the last decision by age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permitted: Option<Permitted>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Whether the job's memory compresses.
    pub verdict: Verdict,
    /// Bytes that may be written for the job.
    pub writable: Bytes,
    /// The tier, or why there is none; `None` if the machine has no far memory.
    pub choice: Option<Choice>,
    /// Why no swap-backed memory may leave DRAM, if none may.
    pub veto: Option<Veto>,
}

/// The journal record of one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRecord {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job's cgroup.
    pub job: String,
    /// The kernel's id of that cgroup.
    pub id: u64,
    /// What the decision is based on.
    pub input: Input,
    /// What was decided.
    pub decision: Decision,
}

impl Replay for TieringStart {
    type Record = TierRecord;

    fn replay(&mut self, record: &TierRecord, _: &Thresholds) -> bool {
        step(self, &record.input) == record.decision
    }
}

/// Whether a sample of the job's cold pages is due by policy `incompressible`.
#[must_use]
pub fn sample_due(start: &TieringStart, now_ms: Millis, page_bytes: u64, stored: Stored) -> bool {
    incompressible::step(&start.incompressible, start.state, now_ms, page_bytes, stored, None).1 == Verdict::SampleDue
}

/// Decides, and keeps the resulting state in `start`.
pub fn step(start: &mut TieringStart, input: &Input) -> Decision {
    start.writes.apply(&input.charged);
    let writable = start.writes.available(input.now_ms);
    // A full pool concerns only what would stay in it: other memory goes to a device, or zswap writes back to one.
    if !input.far_memory && !input.pool_full {
        start.tier = None;
        let verdict = if start.state == incompressible::State::default() { Verdict::Compressible } else { Verdict::Incompressible };
        return Decision { verdict, writable, choice: None, veto: Some(Veto::NoFarMemory) };
    }
    let verdict = judge(start, input);
    let compressed = if verdict == Verdict::Compressible { start.compressed } else { Some(INCOMPRESSIBLE) };
    let of_job = |row: &Row| Row { endurance: row.endurance.map(|left| left.min(writable)), ..*row };
    let rows: Vec<Row> = input.rows.iter().map(of_job).collect();
    let choice = match start.operator {
        Some(tier) => by_operator(tier, &rows),
        None => {
            let input = tiering::Input { compressed, rows: &rows, previous: start.tier, permitted: input.permitted };
            tiering::choose(&start.params, &input)
        }
    };
    start.tier = tier_of(choice);
    Decision { verdict, writable, choice: Some(choice), veto: veto(choice, input) }
}

/// Whether the job's memory compresses, by the kernel's counters and a sample, if there is one.
fn judge(start: &mut TieringStart, input: &Input) -> Verdict {
    let policy = |state, sample| incompressible::step(&start.incompressible, state, input.now_ms, input.page_bytes, input.stored, sample);
    let (mut state, mut verdict) = policy(start.state, None);
    if let Some(sampled) = input.sampled {
        (state, verdict) = policy(state, Some(sampled.sample));
    }
    start.state = state;
    if let Some(sampled) = input.sampled {
        start.compressed = Some(sampled.ratio);
    }
    verdict
}

/// The tier of a choice, if it has one.
#[must_use]
pub fn tier_of(choice: Choice) -> Option<Tier> {
    match choice {
        Choice::Use { tier, .. } => Some(tier),
        Choice::Hold { .. } => None,
    }
}

fn veto(choice: Choice, input: &Input) -> Option<Veto> {
    // Only what would stay in zswap's pool does not fit into it.
    let in_front = |tier: Tier| input.rows.iter().any(|row| row.id == tier.first && row.is_in_front_of_swap());
    match choice {
        Choice::Use { tier, .. } => (input.pool_full && tier.second.is_none() && in_front(tier)).then_some(Veto::NoFarMemory),
        Choice::Hold { why: Why::DoesNotCompress } => Some(Veto::Incompressible),
        Choice::Hold { why: Why::WritesSpent } => Some(Veto::WritesSpent),
        Choice::Hold { .. } => Some(Veto::NoFarMemory),
    }
}

/// The operator's tier, as far as the machine has it and may write to it.
fn by_operator(tier: OperatorTier, rows: &[Row]) -> Choice {
    let rows = reachable(rows);
    let compressing = rows.iter().find(|row| row.accounting == Accounting::Compressed);
    let device = rows.iter().find(|row| row.accounting == Accounting::SwapCost);
    let area = rows.iter().find(|row| !row.is_in_front_of_swap());
    let only = |row, why| Choice::Use { tier: Tier::of(row), why };
    match (tier, compressing, area) {
        (OperatorTier::Zswap, Some(row), _) => only(row, Why::OnlyTier),
        (OperatorTier::Swap, _, Some(area)) if !may_write(area) => Choice::Hold { why: Why::WritesSpent },
        (OperatorTier::Swap, _, Some(area)) => only(area, Why::OnlyTier),
        (OperatorTier::Both, Some(row), _) => match device {
            // Warm memory is still compressed; nothing more is written.
            None => only(row, Why::NoDevice),
            Some(device) if !may_write(device) => only(row, Why::WritesSpent),
            Some(device) => {
                let why = if row.writes_back == Some(device.id) { Why::OnlyTier } else { Why::NoShrinker };
                Choice::Use { tier: Tier::written_back(row, device), why }
            }
        },
        _ => Choice::Hold { why: Why::NoTier },
    }
}

/// Inputs as journals have them.
mod recorded {
    use policy::incompressible::Stored;
    use policy::tiering::row::{Accounting, Medium, Placing, Row, RowId};
    use policy::tiering::{FORMER_ROWS, Permitted};
    use serde::Deserialize;
    use units::{Bytes, Millis};

    use super::{Charges, Sampled};

    /// The input of any version.
    #[derive(Deserialize)]
    pub(super) struct Input {
        now_ms: Millis,
        page_bytes: u64,
        far_memory: bool,
        pool_full: bool,
        #[serde(default)]
        stored: Stored,
        #[serde(default)]
        sampled: Option<Sampled>,
        #[serde(flatten)]
        charged: Charges,
        /// Since version 6.
        rows: Option<Vec<Row>>,
        #[serde(default)]
        permitted: Option<Permitted>,
        #[serde(flatten)]
        former: Offer,
    }

    /// What a machine offered, until version 5: zswap and one device.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Offer {
        machine_writable: Bytes,
        zswap: bool,
        swap: bool,
        writeback: bool,
        swap_latency_us: Option<u32>,
        zswap_latency_us: Option<u32>,
    }

    impl Offer {
        fn rows(&self) -> Vec<Row> {
            let [zswap, swap] = FORMER_ROWS.map(str::parse::<RowId>);
            let (Ok(zswap), Ok(swap)) = (zswap, swap) else { return Vec::new() };
            let writes_back = (self.swap && self.writeback).then_some(swap);
            let zswap = Row {
                id: zswap,
                medium: Medium::CompressedDram,
                latency_us: self.zswap_latency_us,
                free: None,
                endurance: None,
                accounting: Accounting::Compressed,
                writes_back,
                placing: Placing::Cgroup,
            };
            let swap = Row {
                id: swap,
                medium: Medium::Device,
                latency_us: self.swap_latency_us,
                endurance: Some(self.machine_writable),
                accounting: Accounting::SwapCost,
                writes_back: None,
                placing: Placing::Priority(0),
                ..zswap
            };
            [self.zswap.then_some(zswap), self.swap.then_some(swap)].into_iter().flatten().collect()
        }
    }

    impl From<Input> for super::Input {
        fn from(recorded: Input) -> Self {
            let Input { now_ms, page_bytes, far_memory, pool_full, stored, sampled, charged, rows, permitted, former } = recorded;
            let rows = rows.unwrap_or_else(|| former.rows());
            Self { now_ms, page_bytes, far_memory, pool_full, stored, sampled, charged, rows, permitted }
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::tiering::row::Placing;

    use super::*;

    const VERSION_5: &str = r#"{"now_ms":1,"page_bytes":4096,"far_memory":true,"pool_full":false,"machine_writable":1048576,"#;

    /// Rows of a journal of version 5.
    fn rows([zswap, swap, writeback, writes_left]: [bool; 4]) -> Vec<Row> {
        let text = format!(r#"{VERSION_5}"zswap":{zswap},"swap":{swap},"writeback":{writeback}}}"#);
        let mut rows = serde_json::from_str::<Input>(&text).unwrap().rows;
        let left = |row: &mut Row| row.endurance = row.endurance.filter(|_| writes_left).or(row.endurance.map(|_| Bytes::ZERO));
        rows.iter_mut().for_each(left);
        rows
    }

    #[test]
    fn an_operators_tier_is_used_as_far_as_the_machine_has_it() {
        let check = |tier, offer: [bool; 4], expected: Choice| {
            assert_eq!(by_operator(tier, &rows(offer)), expected, "{tier:?} {offer:?}");
        };
        let tier = |name: &str| serde_json::from_str::<Tier>(&format!("\"{name}\"")).unwrap();
        let keep = |name, why| Choice::Use { tier: tier(name), why };
        let hold = |why| Choice::Hold { why };
        check(OperatorTier::Zswap, [true; 4], keep("zswap", Why::OnlyTier));
        check(OperatorTier::Zswap, [true, false, false, false], keep("zswap", Why::OnlyTier));
        check(OperatorTier::Zswap, [false, true, true, true], hold(Why::NoTier));
        check(OperatorTier::Swap, [false, true, false, true], keep("swap", Why::OnlyTier));
        check(OperatorTier::Swap, [true, false, false, true], hold(Why::NoTier));
        check(OperatorTier::Swap, [true, true, true, false], hold(Why::WritesSpent));
        check(OperatorTier::Both, [true; 4], keep("both", Why::OnlyTier));
        check(OperatorTier::Both, [true, true, false, true], keep("both", Why::NoShrinker));
        check(OperatorTier::Both, [true, false, false, true], keep("zswap", Why::NoDevice));
        check(OperatorTier::Both, [true, true, true, false], keep("zswap", Why::WritesSpent));
        check(OperatorTier::Both, [false, true, false, true], hold(Why::NoTier));
    }

    #[test]
    fn any_operators_tier_but_both_is_zram_where_the_machine_swaps_to_it_only() {
        let [zswap] = rows([true, false, false, false])[..] else { panic!("one row") };
        let zram = Row { id: "zram0".parse().unwrap(), placing: Placing::Priority(100), ..zswap };
        let on = |why| Choice::Use { tier: Tier::of(&zram), why };
        for (tier, why) in [(OperatorTier::Zswap, Why::OnlyTier), (OperatorTier::Swap, Why::OnlyTier), (OperatorTier::Both, Why::NoDevice)]
        {
            assert_eq!(by_operator(tier, &[zram]), on(why), "{tier:?}");
        }
    }

    #[test]
    fn a_stall_target_moves_no_job_whose_tier_the_operator_chose() {
        let config = config::Config::default();
        let params = config.swap.job_endurance();
        let start = TieringStart {
            operator: None,
            params: config.tiering_for(config::Class::Standard),
            incompressible: config.incompressible.params(),
            state: incompressible::State::default(),
            writes: EnduranceStart { params, bucket: policy::endurance::Bucket::full(&params, Millis(0)) },
            compressed: Some(RatioPpm(330_000)),
            tier: None,
        };
        let text = format!(r#"{VERSION_5}"zswap":true,"swap":true,"permitted":{{"compressed":9000,"device":9000}}}}"#);
        let input: Input = serde_json::from_str(&text).unwrap();
        let check =
            |operator, input: &Input| tier_of(step(&mut TieringStart { operator, ..start }, input).choice.unwrap()).unwrap().to_string();
        assert_eq!(check(None, &input), "swap");
        assert_eq!(check(None, &Input { permitted: None, ..input.clone() }), "zswap", "as older journals");
        assert_eq!(check(Some(OperatorTier::Zswap), &input), "zswap");
        let spent = Charges { charges: vec![(Millis(1), Bytes::mib(1 << 20))], bucket: None };
        assert_eq!(check(None, &Input { charged: spent, ..input.clone() }), "zswap", "the write budget is spent");
        assert_eq!(serde_json::from_str::<Input>(&serde_json::to_string(&input).unwrap()).unwrap(), input);
    }

    #[test]
    fn an_input_survives_the_journal() {
        let text = format!(r#"{VERSION_5}"zswap":true,"swap":true,"writeback":true,"charges":[[7,4096]],"zswap_latency_us":9}}"#);
        let input: Input = serde_json::from_str(&text).unwrap();
        assert_eq!((input.rows.len(), input.rows[0].latency_us, input.charged.charges.len()), (2, Some(9), 1));
        let written = serde_json::to_string(&input).unwrap();
        assert!(written.contains("\"rows\"") && !written.contains("machine_writable"), "{written}");
        assert_eq!(serde_json::from_str::<Input>(&written).unwrap(), input);
    }
}
