use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;

/// Models that were trained, with what the trainer says of some VMs: those of the tests of `predict`.
fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata").join(name)
}

#[derive(Deserialize)]
struct Ended {
    ended: Vec<(u64, i64, f64)>,
}

#[derive(Deserialize)]
struct Known {
    request: Request,
    untouched_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct Workload {
    counters: std::collections::BTreeMap<String, f32>,
    score: Option<f64>,
}

/// A directory with these of the tested models.
fn models(files: &[&str]) -> (tempfile::TempDir, Models) {
    let directory = tempfile::tempdir().unwrap();
    for file in files {
        std::fs::copy(testdata(file), directory.path().join(file)).unwrap();
    }
    let models = Models::load(directory.path()).unwrap();
    (directory, models)
}

/// The trainer's VMs as a trace, and what it says of those that are asked about, by id.
fn trace() -> (Vec<Vm>, Words, HashMap<u64, Option<f64>>) {
    let text = std::fs::read_to_string(testdata("untouched.jsonl")).unwrap();
    let mut lines = text.lines();
    let Ended { ended } = serde_json::from_str(lines.next().unwrap()).unwrap();
    let (mut words, mut trainer) = (Words::default(), HashMap::new());
    let past = ended.into_iter().map(|(customer, when, untouched)| Vm {
        arrival: when.min(0),
        departure: Some(when),
        cores: 1,
        memory_bytes: 1 << 30,
        customer: Some(customer),
        untouched_ratio: Some(untouched),
        ..Vm::default()
    });
    let mut vms: Vec<Vm> = past.collect();
    for line in lines {
        let Known { request, untouched_ratio } = serde_json::from_str(line).unwrap();
        let mut number = |list: fn(&mut Words) -> &mut Vec<String>, word: &Option<String>| {
            word.as_ref().and_then(|word| vmtrace::number_of(list(&mut words), word))
        };
        trainer.insert(vms.len() as u64, untouched_ratio);
        vms.push(Vm {
            arrival: request.arrival,
            cores: request.cores,
            memory_bytes: request.memory_bytes,
            customer: request.customer,
            vm_type: number(|words| &mut words.vm_types, &request.vm_type),
            guest_os: number(|words| &mut words.guest_os, &request.guest_os),
            location: number(|words| &mut words.locations, &request.location),
            ..Vm::default()
        });
    }
    for (id, vm) in (0..).zip(&mut vms) {
        vm.id = id;
    }
    vms.sort_by_key(Vm::order);
    (vms, words, trainer)
}

fn asked<'a>(vms: &'a [Vm], words: &'a Words) -> Asked<'a> {
    Asked { vms, words, counters: None, added_ns: 64, margin: 0.05 }
}

#[test]
fn vms_of_a_trace_are_foretold_what_the_trainer_says() {
    let (_directory, models) = models(&["untouched.onnx"]);
    let (vms, words, trainer) = trace();
    let foretold = foretell(&models, asked(&vms, &words));
    let mut answered = 0;
    for vm in vms.iter().filter(|vm| trainer.contains_key(&vm.id)) {
        let Prediction { insensitive, untouched_ratio } = foretold.predict(vm);
        let want = trainer[&vm.id];
        assert!((untouched_ratio - want.unwrap_or(0.0)).abs() < 1e-5, "{vm:?}: the trainer says {want:?}, not {untouched_ratio}");
        assert!(!insensitive);
        answered += usize::from(want.is_some());
    }
    assert!(answered > 100, "{answered}");
    let Quality { vms: asked_about, reasons, .. } = &foretold.quality;
    assert_eq!(reasons.decisions(), *asked_about);
    assert!(reasons.of(Reason::UnseenCategory) > 0, "{reasons:?}");
}

#[test]
fn who_left_before_the_first_night_is_not_asked_about_and_who_stayed_is() {
    let (_directory, models) = models(&["untouched.onnx"]);
    let (mut vms, words, _) = trace();
    let begins = models.begins();
    let before = vms.iter().filter(|vm| vm.departure.is_some_and(|departure| departure <= begins)).count();
    assert!(before > 100, "{before}");
    let stayed = Vm { id: 1 << 40, arrival: i64::MIN / 4, departure: None, ..vms.last().unwrap().clone() };
    vms.insert(0, stayed.clone());
    let foretold = foretell(&models, asked(&vms, &words));
    assert_eq!(foretold.quality.vms, (vms.len() - before) as u64);
    assert!(foretold.by_vm.contains_key(&stayed.id));
    assert_eq!(foretold.quality.reasons.of(Reason::StaleModel), 0, "asked when the model comes into force");
}

#[test]
fn counters_are_those_of_an_earlier_vm_of_the_same_workload() {
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
    let begins = models.begins();
    let vm = |id: u64, customer, slowdown| Vm {
        id,
        arrival: begins + i64::try_from(id).unwrap(),
        cores: 1,
        memory_bytes: 4 << 30,
        customer: Some(customer),
        slowdown_64ns: Some(slowdown),
        slowdown_140ns: Some(slowdown),
        ..Vm::default()
    };
    // Of the second customer, one that minds follows one that does not.
    let vms = [vm(0, 1, 0.0), vm(1, 1, 0.0), vm(2, 2, 0.0), vm(3, 2, 0.5), vm(4, 3, 0.5), vm(5, 3, 0.0)];
    let words = Words::default();
    let told = |counters, added_ns| {
        let foretold = foretell(&models, Asked { counters, added_ns, ..asked(&vms, &words) });
        (vms.iter().map(|vm| foretold.predict(vm).insensitive).collect::<Vec<_>>(), foretold.quality)
    };
    let (insensitive, quality) = told(Some(&counters), 64);
    assert_eq!(insensitive, [false, true, false, true, false, false]);
    let thirds = [quality.with_counters_ratio, quality.insensitive_ratio, quality.false_positive_ratio].map(|ratio| (ratio * 6.0).round());
    assert_eq!(thirds, [3.0, 2.0, 1.0]);
    // The model was trained for 182 %, and no other latency.
    assert_eq!(told(Some(&counters), 140).0, [false; 6]);
    assert_eq!(told(None, 64).0, [false; 6]);
}

#[test]
fn a_damaged_night_is_left_out_and_none_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let damaged = directory.path().join("untouched-2.onnx");
    std::fs::write(&damaged, b"no model").unwrap();
    let told = Models::load(directory.path()).unwrap_err().to_string();
    assert!(told.contains("untouched-2.onnx") && told.contains("train nights"), "{told}");
    std::fs::copy(testdata("untouched.onnx"), directory.path().join("untouched-1.onnx")).unwrap();
    let models = Models::load(directory.path()).unwrap();
    assert_eq!((models.nights().len(), models.faults().len()), (1, 1));
    assert!(models.faults()[0].contains("untouched-2.onnx"), "{:?}", models.faults());
    assert!(Models::load(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
}
