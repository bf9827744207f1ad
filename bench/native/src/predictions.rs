//! Predictions on the VM request path, with models of the default training size.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use predict::{Insensitive, Predictor, Request, Untouched};
use serde::Serialize;

/// Number of measured decisions.
const DECISIONS: usize = 200_000;
/// Requirement: the 99th percentile of a prediction is at most 100 us.
const P99_SECONDS_MAX: f64 = 100e-6;

/// Figures: wall time of one decision with both models, including the lookup of the customer's history.
#[derive(Debug, Serialize)]
pub(crate) struct Predictions {
    prediction_p50_seconds: f64,
    prediction_p99_seconds: f64,
    prediction_p999_seconds: f64,
    prediction_p99_required_seconds: f64,
    /// The same with the prediction of untouched memory only.
    untouched_p99_seconds: f64,
    /// Time to read and check both models.
    load_seconds: f64,
    decisions: usize,
}

/// Measures decisions for the VMs and workloads of the test data, with models of the default training
/// (`models/README.md`).
///
/// # Errors
/// A model or the test data cannot be read, or the models answer too few of the requests.
pub(crate) fn predict_bench(root: &Path) -> Result<Predictions> {
    let models = root.join("bench/native/models");
    let began = Instant::now();
    let untouched = Untouched::load(&models.join("untouched.onnx"))?;
    let insensitive = Insensitive::load(&models.join("insensitive.onnx"))?;
    let load_seconds = began.elapsed().as_secs_f64();
    let testdata = root.join("crates/pool/predict/testdata");
    let mut requests = requests(&testdata, *untouched.valid().start())?;
    let mut predictor = Predictor::new(Ok(untouched), Some(Ok(insensitive)));
    fill(&mut predictor, &requests);
    let whole = measure(&predictor, &requests)?;
    requests.iter_mut().for_each(|request| request.counters = None);
    let alone = measure(&predictor, &requests)?;
    Ok(Predictions {
        prediction_p50_seconds: at(&whole, 500),
        prediction_p99_seconds: at(&whole, 990),
        prediction_p999_seconds: at(&whole, 999),
        prediction_p99_required_seconds: P99_SECONDS_MAX,
        untouched_p99_seconds: at(&alone, 990),
        load_seconds,
        decisions: DECISIONS,
    })
}

/// Returns VMs of the test data, requested right after the training, with the counters of its workloads in turn.
fn requests(testdata: &Path, arrival: i64) -> Result<Vec<Request>> {
    #[derive(serde::Deserialize)]
    struct Vm {
        request: Request,
    }
    #[derive(serde::Deserialize)]
    struct Workload {
        counters: BTreeMap<String, f32>,
    }
    let read = |name: &str| std::fs::read_to_string(testdata.join(name)).with_context(|| format!("cannot read {name}"));
    let workloads = read("insensitive.jsonl")?;
    let workloads: Vec<Workload> = workloads.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let vms = read("untouched.jsonl")?;
    // The first line contains VMs that have ended.
    let vms: Vec<Vm> = vms.lines().skip(1).map(serde_json::from_str).collect::<Result<_, _>>()?;
    let with = |(mut vm, workload): (Vm, &Workload)| {
        (vm.request.arrival, vm.request.counters) = (arrival, Some(workload.counters.clone()));
        vm.request
    };
    Ok(vms.into_iter().zip(workloads.iter().cycle()).map(with).collect())
}

/// Fills every customer's history with as many VMs as are kept.
fn fill(predictor: &mut Predictor, requests: &[Request]) {
    let mut random = fastrand::Rng::with_seed(1);
    for request in requests {
        for back in (0..256).rev() {
            let middle = random.f64();
            predictor.history().record(request.customer.unwrap_or(0), request.arrival - 60 * back, 0.1 + 0.8 * middle);
        }
    }
}

/// Returns the seconds of each decision, sorted.
fn measure(predictor: &Predictor, requests: &[Request]) -> Result<Vec<f64>> {
    let before = predictor.counts().tally();
    let mut seconds = Vec::with_capacity(DECISIONS);
    for request in requests.iter().cycle().take(DECISIONS) {
        let began = Instant::now();
        black_box(predictor.decide(black_box(request)));
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_unstable_by(f64::total_cmp);
    let now = predictor.counts().tally();
    let safe =
        |tally: &predict::Tally| predict::Reason::ALL.into_iter().filter(|one| one.is_safe_answer()).map(|one| tally.of(one)).sum::<u64>();
    let unanswered = safe(&now) - safe(&before);
    ensure!(unanswered * 10 <= DECISIONS as u64, "{unanswered} of {DECISIONS} requests were not answered, so the measurement is not valid");
    Ok(seconds)
}

/// Returns a per-mille of sorted values.
fn at(ordered: &[f64], per_mille: usize) -> f64 {
    ordered.get((ordered.len().saturating_sub(1)) * per_mille / 1000).copied().unwrap_or(f64::NAN)
}
