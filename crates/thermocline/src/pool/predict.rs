//! `thermocline pool predict`: the predictions that a scheduler would get for requested VMs.

use std::fmt::Write as _;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use predict::{Alert, Decision, Latency, Limits, Predicted, Predictor, Reason, Request, Tally};
use serde::Serialize;

use crate::options::Format;
use crate::output::print;

/// Upper limit of the requests of one run.
const REQUESTS_MAX: usize = 1_000_000;

#[derive(Debug, Args)]
#[command(after_help = "\
A request is a JSON object; a file holds one or many:

  {\"customer\": 7, \"vm_type\": \"D4\", \"guest_os\": \"linux-a\", \"location\": \"region-a\",
   \"cores\": 4, \"memory_bytes\": 17179869184, \"arrival\": 1209600,
   \"history\": [0.5, 0.42, 0.61], \"counters\": {\"DRAM_Bound\": 0.01}}

`history` are the untouched shares of the customer's VMs that ended in the past week. `counters` are those of earlier VMs of the \
same workload. Both are optional. A VM that is placed again has `own_past`, the untouched shares of its own past days, from 3 to 7: \
then 0.9 times the least of them is promised, in place of what the model predicts. If a model gives no prediction, all memory stays local: without history, for an unseen \
category, for a feature out of range, or if the model is missing, damaged or too old. The reason is printed and counted.")]
pub(crate) struct Predict {
    /// The untouched-memory model, written by `thermocline-learn train untouched`; without it only VMs with a past week of their own
    /// are predicted
    #[arg(long, value_name = "FILE.onnx")]
    model: Option<PathBuf>,
    /// The latency-insensitivity model, written by `thermocline-learn train insensitive`
    #[arg(long, value_name = "FILE.onnx")]
    insensitive: Option<PathBuf>,
    /// The requests; `-` for standard input
    #[arg(long, value_name = "FILE.json")]
    request: PathBuf,
}

#[derive(Debug, Serialize)]
struct Report {
    decisions: Vec<Decision>,
    counts: Tally,
    alerts: Vec<Alert>,
    faults: Vec<String>,
}

/// Runs the command.
pub(super) fn predict(format: Format, arguments: &Predict) -> Result<()> {
    let insensitive = arguments.insensitive.as_deref();
    let predictor =
        arguments.model.as_deref().map_or_else(|| Predictor::without_model(insensitive), |model| Predictor::load(model, insensitive));
    let unusable = predictor.errors().filter(|error| arguments.model.is_some() || !error.is_missing());
    let faults: Vec<String> = unusable.map(ToString::to_string).collect();
    for fault in &faults {
        log::warn!("{fault}");
    }
    let requests = read(&arguments.request)?;
    let decisions = requests.iter().map(|request| predictor.decide(request)).collect();
    let counts = predictor.counts().tally();
    let alerts = counts.alerts_since(&Tally::default(), &Limits::default());
    for alert in &alerts {
        log::warn!("{:.1} % of decisions: {}", alert.ratio * 100.0, alert.message);
    }
    let report = Report { decisions, counts, alerts, faults };
    print(format, &report, || text(&requests, &report))
}

fn read(path: &Path) -> Result<Vec<Request>> {
    let (name, from): (_, Box<dyn Read>) = if path == Path::new("-") {
        ("standard input".to_owned(), Box::new(std::io::stdin()))
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        (path.display().to_string(), Box::new(file))
    };
    let mut requests = Vec::new();
    for request in serde_json::Deserializer::from_reader(BufReader::new(from)).into_iter() {
        let number = requests.len() + 1;
        if number > REQUESTS_MAX {
            bail!("{name}: more than {REQUESTS_MAX} requests; split the file");
        }
        requests.push(request.with_context(|| format!("{name}: request {number} is invalid"))?);
    }
    if requests.is_empty() {
        bail!("{name}: no requests; see `thermocline pool predict --help` for an example");
    }
    Ok(requests)
}

fn text(requests: &[Request], report: &Report) -> String {
    let mut text = String::new();
    for (at, (request, decision)) in requests.iter().zip(&report.decisions).enumerate() {
        let (pool, memory) = (decision.pool_bytes, request.memory_bytes);
        let _ = writeln!(text, "request {}: {pool} of {memory} from the pool: {}", at + 1, reason(decision));
    }
    if requests.len() > 1 {
        for reason in Reason::ALL {
            let count = report.counts.of(reason);
            if count > 0 {
                let _ = writeln!(text, "{count:8} {}", reason.name());
            }
        }
    }
    text
}

fn reason(decision: &Decision) -> String {
    let reason = match decision.reason {
        Reason::Insensitive => "insensitive to slow memory".to_owned(),
        Reason::Untouched | Reason::NothingUntouched => {
            let by = if decision.predicted_by == Some(Predicted::OwnPast) { " by its own past week" } else { "" };
            format!("{:.1} % predicted{by} to stay untouched", decision.untouched_ratio.unwrap_or_default() * 100.0)
        }
        Reason::NoHistory => "too little history of the customer's VMs".to_owned(),
        Reason::UnseenCategory => "the type, system or region is not in the training data".to_owned(),
        Reason::Drifted => "a feature is outside the range of the training data".to_owned(),
        Reason::StaleModel => "the model is not valid at the time of the arrival".to_owned(),
        Reason::NoModel => "the model does not exist".to_owned(),
        Reason::BadModel => "the model cannot be used".to_owned(),
        Reason::BadRequest => "the request has no cores or no memory".to_owned(),
    };
    match decision.latency {
        Latency::Insensitive(score) | Latency::Sensitive(score) => format!("{reason} (probability of being insensitive: {score:.2})"),
        Latency::NoModel | Latency::NoAnswer(_) => reason,
    }
}
