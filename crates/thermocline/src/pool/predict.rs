//! `thermocline pool predict`: what a scheduler would be told of VMs that are asked for.

use std::fmt::Write as _;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use predict::{Alert, Decision, Latency, Limits, Predictor, Reason, Request, Tally};
use serde::Serialize;
use units::Bytes;

use crate::options::Format;
use crate::output::print;

/// Requests of one run.
const REQUESTS_MAX: usize = 1_000_000;

#[derive(Debug, Args)]
#[command(after_help = "\
A request is a JSON object; a file holds one or many:

  {\"customer\": 7, \"vm_type\": \"D4\", \"guest_os\": \"linux-a\", \"location\": \"region-a\",
   \"cores\": 4, \"memory_bytes\": 17179869184, \"arrival\": 1209600,
   \"history\": [0.5, 0.42, 0.61], \"counters\": {\"DRAM_Bound\": 0.01}}

The history are untouched shares of the customer's VMs that ended in the past week, the counters those of earlier VMs of the \
same workload; both may be left out. What a model may not speak of stays local: without history, of an unseen category, with a \
feature out of range, or by a model that is missing, damaged or too old. The reason is told and counted.")]
pub(crate) struct Predict {
    /// The untouched-memory model, as `python -m thermocline.learn train untouched` writes it
    #[arg(long, value_name = "FILE.onnx")]
    model: PathBuf,
    /// The latency-insensitivity model, as `python -m thermocline.learn train insensitive` writes it
    #[arg(long, value_name = "FILE.onnx")]
    insensitive: Option<PathBuf>,
    /// The requests; `-` is standard input
    #[arg(long, value_name = "FILE.json")]
    request: PathBuf,
}

#[derive(Debug, Serialize)]
struct Told {
    decisions: Vec<Decision>,
    counts: Tally,
    alerts: Vec<Alert>,
    faults: Vec<String>,
}

/// Runs the command.
pub(super) fn predict(format: Format, arguments: &Predict) -> Result<()> {
    let predictor = Predictor::load(&arguments.model, arguments.insensitive.as_deref());
    let faults: Vec<String> = predictor.errors().map(ToString::to_string).collect();
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
    let told = Told { decisions, counts, alerts, faults };
    print(format, &told, || text(&requests, &told))
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
        requests.push(request.with_context(|| format!("{name}: request {number} cannot be read"))?);
    }
    if requests.is_empty() {
        bail!("{name}: holds no request; see `thermocline pool predict --help` for one");
    }
    Ok(requests)
}

fn text(requests: &[Request], told: &Told) -> String {
    let mut text = String::new();
    for (at, (request, decision)) in requests.iter().zip(&told.decisions).enumerate() {
        let (pool, memory) = (Bytes(decision.pool_bytes), Bytes(request.memory_bytes));
        let _ = writeln!(text, "request {}: {pool} of {memory} from the pool: {}", at + 1, words(decision));
    }
    if requests.len() > 1 {
        for reason in Reason::ALL {
            let count = told.counts.of(reason);
            if count > 0 {
                let _ = writeln!(text, "{count:8} {}", reason.name());
            }
        }
    }
    text
}

fn words(decision: &Decision) -> String {
    let why = match decision.reason {
        Reason::Insensitive => "it does not notice slow memory".to_owned(),
        Reason::Untouched | Reason::NothingUntouched => {
            format!("it leaves {:.1} % untouched", decision.untouched_ratio.unwrap_or_default() * 100.0)
        }
        Reason::NoHistory => "too little is known of its customer's VMs".to_owned(),
        Reason::UnseenCategory => "its type, system or region was not trained on".to_owned(),
        Reason::Drifted => "a feature is out of the range that was trained on".to_owned(),
        Reason::StaleModel => "the model was not trained in the days before its arrival".to_owned(),
        Reason::NoModel => "there is no model".to_owned(),
        Reason::BadModel => "the model cannot be used".to_owned(),
        Reason::BadRequest => "it has no cores or no memory".to_owned(),
    };
    match decision.latency {
        Latency::Insensitive(score) | Latency::Sensitive(score) => format!("{why} (insensitive by {score:.2})"),
        Latency::NoModel | Latency::NoAnswer(_) => why,
    }
}
