use std::path::{Path, PathBuf};

use serde::Deserialize;
use units::Bytes;

use super::*;

/// Trained models with the trainer's predictions for some VMs: the test data of `predict`.
fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata").join(name)
}

#[derive(Deserialize)]
struct Departures {
    ended: Vec<(u64, i64, f64)>,
}

#[derive(Deserialize)]
struct Sample {
    request: Request,
    untouched_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct Workload {
    counters: std::collections::BTreeMap<String, f32>,
    score: Option<f64>,
}

/// The latest VM decides, even if it has only just arrived.
const LATEST: Evidence = Evidence { agree: 1, run_seconds: 0 };

/// Creates a directory with these of the test models, and reads it.
fn models(files: &[&str]) -> (tempfile::TempDir, Models) {
    let directory = tempfile::tempdir().unwrap();
    for file in files {
        std::fs::copy(testdata(file), directory.path().join(file)).unwrap();
    }
    let models = Models::load(directory.path()).unwrap();
    (directory, models)
}

/// Returns the trainer's VMs as a trace, and the trainer's predictions by VM id.
fn trace() -> (Vec<Vm>, CategoryNames, HashMap<u64, Option<f64>>) {
    let text = std::fs::read_to_string(testdata("untouched.jsonl")).unwrap();
    let mut lines = text.lines();
    let Departures { ended } = serde_json::from_str(lines.next().unwrap()).unwrap();
    let (mut names, mut trainer) = (CategoryNames::default(), HashMap::new());
    let past = ended.into_iter().map(|(customer, when, untouched)| Vm {
        arrival: when.min(0),
        departure: Some(when),
        cores: 1,
        memory_bytes: Bytes::gib(1),
        customer: Some(customer),
        untouched_ratio: Some(untouched),
        ..Vm::default()
    });
    let mut vms: Vec<Vm> = past.collect();
    for line in lines {
        let Sample { request, untouched_ratio } = serde_json::from_str(line).unwrap();
        let mut number = |list: fn(&mut CategoryNames) -> &mut Vec<String>, name: &Option<String>| {
            name.as_ref().and_then(|name| vmtrace::number_of(list(&mut names), name))
        };
        trainer.insert(vms.len() as u64, untouched_ratio);
        vms.push(Vm {
            arrival: request.arrival,
            cores: request.cores,
            memory_bytes: request.memory_bytes,
            customer: request.customer,
            vm_type: number(|names| &mut names.vm_types, &request.vm_type),
            guest_os: number(|names| &mut names.guest_os, &request.guest_os),
            location: number(|names| &mut names.locations, &request.location),
            ..Vm::default()
        });
    }
    for (id, vm) in (0..).zip(&mut vms) {
        vm.id = id;
    }
    vms.sort_by_key(Vm::order);
    (vms, names, trainer)
}

fn input<'a>(vms: &'a [Vm], names: &'a CategoryNames) -> Input<'a> {
    Input { vms, names, counters: None, added_ns: 64, margin: 0.05, evidence: LATEST }
}

#[test]
fn predictions_equal_the_trainers() {
    let (_directory, models) = models(&["untouched.onnx"]);
    let (vms, names, trainer) = trace();
    let predictions = predict(&models, input(&vms, &names));
    let mut answered = 0;
    for vm in vms.iter().filter(|vm| trainer.contains_key(&vm.id)) {
        let Prediction { insensitive, untouched_ratio } = predictions.predict(vm);
        let want = trainer[&vm.id];
        assert!((untouched_ratio - want.unwrap_or(0.0)).abs() < 1e-5, "{vm:?}: {untouched_ratio}, the trainer predicts {want:?}");
        assert!(!insensitive);
        answered += usize::from(want.is_some());
    }
    assert!(answered > 100, "{answered}");
    let Quality { vms: predicted, reasons, .. } = &predictions.quality;
    assert_eq!(reasons.decisions(), *predicted);
    assert!(reasons.of(Reason::UnseenCategory) > 0, "{reasons:?}");
}

#[test]
fn only_vms_that_run_after_the_first_night_are_predicted() {
    let (_directory, models) = models(&["untouched.onnx"]);
    let (mut vms, names, _) = trace();
    let begins = models.valid_from();
    let before = vms.iter().filter(|vm| vm.departure.is_some_and(|departure| departure <= begins)).count();
    assert!(before > 100, "{before}");
    let stayed = Vm { id: 1 << 40, arrival: i64::MIN / 4, departure: None, ..vms.last().unwrap().clone() };
    vms.insert(0, stayed.clone());
    let predictions = predict(&models, input(&vms, &names));
    assert_eq!(predictions.quality.vms, (vms.len() - before) as u64);
    assert!(predictions.by_vm.contains_key(&stayed.id));
    assert_eq!(predictions.quality.reasons.of(Reason::StaleModel), 0, "predicted when the model becomes valid");
}

#[test]
fn counters_come_from_an_earlier_vm_of_the_same_workload() {
    let text = std::fs::read_to_string(testdata("insensitive.jsonl")).unwrap();
    let workloads: Vec<Workload> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let by_score = |a: &&Workload, b: &&Workload| a.score.unwrap().total_cmp(&b.score.unwrap());
    let answered = || workloads.iter().filter(|one| one.score.is_some());
    let (best, worst) = (answered().max_by(by_score).unwrap(), answered().min_by(by_score).unwrap());
    let sample = |workload: &Workload, slowdown: f64| {
        serde_json::json!({"name": "w", "counters": workload.counters, "slowdowns": [slowdown, slowdown]}).to_string() + "\n"
    };
    let (directory, models) = models(&["untouched.onnx", "insensitive.onnx"]);
    let path = directory.path().join("samples.jsonl");
    std::fs::write(&path, sample(best, 0.0) + &sample(worst, 0.5)).unwrap();
    let counters = Counters::read(&path).unwrap();
    let begins = models.valid_from();
    let vm = |id: u64, customer, slowdown| Vm {
        id,
        arrival: begins + i64::try_from(id).unwrap(),
        cores: 1,
        memory_bytes: Bytes::gib(4),
        customer: Some(customer),
        slowdown_64ns: Some(slowdown),
        slowdown_140ns: Some(slowdown),
        ..Vm::default()
    };
    // The second customer has an insensitive VM followed by a sensitive one.
    let vms = [vm(0, 1, 0.0), vm(1, 1, 0.0), vm(2, 2, 0.0), vm(3, 2, 0.5), vm(4, 3, 0.5), vm(5, 3, 0.0)];
    let names = CategoryNames::default();
    let run_by = |evidence, counters, added_ns| {
        let predictions = predict(&models, Input { counters, added_ns, evidence, ..input(&vms, &names) });
        (vms.iter().map(|vm| predictions.predict(vm).insensitive).collect::<Vec<_>>(), predictions.quality)
    };
    let run = |counters, added_ns| run_by(LATEST, counters, added_ns);
    let (insensitive, quality) = run(Some(&counters), 64);
    assert_eq!(insensitive, [false, true, false, true, false, false]);
    let sixths = [quality.with_counters_ratio, quality.insensitive_ratio, quality.false_positive_ratio].map(|ratio| (ratio * 6.0).round());
    assert_eq!(sixths, [3.0, 2.0, 1.0]);
    // The model was trained for 182 % of local latency and no other.
    assert_eq!(run(Some(&counters), 140).0, [false; 6]);
    assert_eq!(run(None, 64).0, [false; 6]);
    // The trace's VMs arrive one after another, each second.
    assert_eq!(run_by(Evidence { agree: 1, run_seconds: 1 }, Some(&counters), 64).0, [false, true, false, true, false, false]);
    let (insensitive, quality) = run_by(Evidence { agree: 1, run_seconds: 2 }, Some(&counters), 64);
    assert_eq!((insensitive, quality.with_counters_ratio), (vec![false; 6], 0.0), "none has run for two seconds");
    assert_eq!(run_by(Evidence { agree: 2, run_seconds: 0 }, Some(&counters), 64).0, [false; 6], "one is not enough");
}

#[test]
fn a_damaged_model_is_skipped_and_a_directory_without_models_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let damaged = directory.path().join("untouched-2.onnx");
    std::fs::write(&damaged, b"no model").unwrap();
    let error = Models::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("untouched-2.onnx") && error.contains("train nights"), "{error}");
    std::fs::copy(testdata("untouched.onnx"), directory.path().join("untouched-1.onnx")).unwrap();
    let models = Models::load(directory.path()).unwrap();
    assert_eq!((models.nights().len(), models.errors().len()), (1, 1));
    assert!(models.errors()[0].contains("untouched-2.onnx"), "{:?}", models.errors());
    assert!(Models::load(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
}
