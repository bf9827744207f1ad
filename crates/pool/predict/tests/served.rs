//! Trained models: predictions equal the trainer's, and tampered files are refused.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use predict::{Decision, Error, Insensitive, Latency, NoAnswer, Predicted, Predictor, Reason, Request, SLICE, Untouched};
use proptest::prelude::*;
use serde::Deserialize;
use units::Bytes;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

#[derive(Deserialize)]
struct Departures {
    ended: Vec<(u64, i64, f64)>,
}

#[derive(Deserialize)]
struct Vm {
    request: Request,
    untouched_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct Workload {
    counters: BTreeMap<String, f32>,
    score: Option<f64>,
}

/// Returns ended VMs in the order of their end, and requested VMs in the order of their arrival.
fn vms() -> (Vec<(u64, i64, f64)>, Vec<Vm>) {
    let text = std::fs::read_to_string(testdata("untouched.jsonl")).unwrap();
    let mut lines = text.lines();
    let departures: Departures = serde_json::from_str(lines.next().unwrap()).unwrap();
    (departures.ended, lines.map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn workloads() -> Vec<Workload> {
    let text = std::fs::read_to_string(testdata("insensitive.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn predicted_untouched_memory_equals_the_trainers() {
    let model = Untouched::load(&testdata("untouched.onnx")).unwrap();
    let (ended, requested) = vms();
    let (mut history, mut ended) = (model.history(), ended.into_iter().peekable());
    let mut answered = 0;
    for vm in &requested {
        while let Some((customer, when, ratio)) = ended.next_if(|record| record.1 <= vm.request.arrival) {
            history.record(customer, when, ratio);
        }
        let predicted = model.predict(&vm.request, history.recent(vm.request.customer.unwrap(), vm.request.arrival));
        match (vm.untouched_ratio, predicted) {
            (Some(trainer), Ok(served)) => {
                assert!((trainer - served).abs() < 1e-5, "{:?}: predicted {served}, the trainer {trainer}", vm.request);
                answered += 1;
            }
            (None, Err(NoAnswer::NoHistory | NoAnswer::Drifted | NoAnswer::UnseenCategory)) => {}
            other => panic!("{:?}: {other:?}", vm.request),
        }
    }
    assert!(answered > 100, "{answered} of {} answered", requested.len());
}

#[test]
fn predicted_insensitivity_equals_the_trainers() {
    let model = Insensitive::load(&testdata("insensitive.onnx")).unwrap();
    let mut scores = Vec::new();
    for workload in workloads() {
        match (workload.score, model.predict(&workload.counters)) {
            (Some(trainer), Ok(served)) => {
                assert!((trainer - served).abs() < 1e-5, "predicted {served}, the trainer {trainer}");
                scores.push(served);
            }
            (None, Err(NoAnswer::Drifted)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(scores.iter().any(|&score| model.is_insensitive(score)) && scores.iter().any(|&score| !model.is_insensitive(score)));
    assert_eq!(model.trained_for(), (1.82, 0.05));
}

fn predictor() -> Predictor {
    Predictor::load(&testdata("untouched.onnx"), Some(&testdata("insensitive.onnx")))
}

/// Returns a request that the model can answer, with a history of its own.
fn known() -> Request {
    let (_, requested) = vms();
    let mut request =
        requested.into_iter().find(|vm| vm.untouched_ratio.is_some() && vm.request.memory_bytes >= Bytes::gib(64)).unwrap().request;
    request.history = Some((0..100u8).map(|at| 0.4 + 0.004 * f32::from(at)).collect());
    request
}

#[test]
fn a_vm_without_a_prediction_stays_local_and_is_counted() {
    let predictor = predictor();
    let check = |change: &dyn Fn(&mut Request), want: Reason| {
        let mut request = known();
        change(&mut request);
        let before = predictor.counts().tally().of(want);
        let decision = predictor.decide(&request);
        assert_eq!(decision.reason, want, "{request:?}");
        assert_eq!(decision.pool_bytes == Bytes::ZERO, want.is_safe_answer());
        assert_eq!(predictor.counts().tally().of(want), before + 1);
    };
    check(&|_| (), Reason::Untouched);
    check(&|request| request.history = None, Reason::NoHistory);
    check(&|request| (request.history, request.customer) = (None, None), Reason::NoHistory);
    check(&|request| request.history = Some(vec![0.5; 2]), Reason::NoHistory);
    check(&|request| request.vm_type = Some("Z9".to_owned()), Reason::UnseenCategory);
    check(&|request| request.vm_type = None, Reason::UnseenCategory);
    check(&|request| request.location = Some(String::new()), Reason::UnseenCategory);
    check(&|request| request.cores = 4096, Reason::Drifted);
    check(&|request| request.memory_bytes = Bytes(u64::MAX), Reason::Drifted);
    check(&|request| request.history = Some(vec![f32::NAN; 9]), Reason::Drifted);
    check(&|request| request.history = Some(vec![-0.5; 9]), Reason::Drifted);
    check(&|request| request.arrival += 4 * 86_400, Reason::StaleModel);
    check(&|request| request.arrival -= 4 * 86_400, Reason::StaleModel);
    check(&|request| request.arrival = i64::MIN, Reason::StaleModel);
    check(&|request| request.cores = 0, Reason::BadRequest);
    check(&|request| request.memory_bytes = Bytes::ZERO, Reason::BadRequest);
}

#[test]
fn the_own_past_week_of_a_vm_is_preferred_to_the_model() {
    let check = |predictor: &Predictor, change: &dyn Fn(&mut Request), want: (Reason, Option<Predicted>)| {
        let mut request = known();
        change(&mut request);
        let decision = predictor.decide(&request);
        assert_eq!((decision.reason, decision.predicted_by), want, "{request:?}");
        decision.untouched_ratio
    };
    let week = |share: f32| move |request: &mut Request| request.own_past = Some(vec![0.9, 0.9, share, 0.9]);
    let (both, none) = (predictor(), Predictor::without_model(None));
    let (by_own, by_model) = ((Reason::Untouched, Some(Predicted::OwnPast)), (Reason::Untouched, Some(Predicted::Model)));
    for predictor in [&both, &none] {
        assert_eq!(check(predictor, &week(0.5), by_own), Some(0.45));
        assert_eq!(check(predictor, &week(0.0), (Reason::NothingUntouched, Some(Predicted::OwnPast))), Some(0.0));
    }
    let model = check(&both, &|_| (), by_model);
    assert!(model.is_some_and(|ratio| ratio > 0.0));
    // Too short a past, or one that is not valid, leaves the VM to the model.
    for past in [vec![0.9; 2], vec![0.9, 0.9, f32::NAN]] {
        assert_eq!(check(&both, &|request| request.own_past = Some(past.clone()), by_model), model);
        assert_eq!(check(&none, &|request| request.own_past = Some(past.clone()), (Reason::NoModel, None)), None);
    }
    // A latency model comes first, as it does before the other model.
    let latency = Latency::Insensitive(0.9);
    assert_eq!(
        both.decide_for(
            &{
                let mut request = known();
                week(0.5)(&mut request);
                request
            },
            latency
        )
        .reason,
        Reason::Insensitive
    );
}

#[test]
fn an_insensitive_workload_is_entirely_on_the_pool() {
    let predictor = predictor();
    let model = Insensitive::load(&testdata("insensitive.onnx")).unwrap();
    let ask = |workload: &Workload| {
        let mut request = known();
        request.memory_bytes += Bytes(1);
        request.counters = Some(workload.counters.clone());
        (request.memory_bytes, predictor.decide(&request))
    };
    let workloads = workloads();
    let find = |insensitive: bool| {
        workloads.iter().find(|workload| workload.score.is_some_and(|score| model.is_insensitive(score) == insensitive)).unwrap()
    };
    let (memory, decision) = ask(find(true));
    assert_eq!((decision.reason, decision.pool_bytes), (Reason::Insensitive, Bytes(memory.0 / SLICE.0 * SLICE.0)));
    let (_, decision) = ask(find(false));
    assert!(matches!(decision, Decision { reason: Reason::Untouched, latency: Latency::Sensitive(_), .. }), "{decision:?}");
    let mut incomplete = Workload { counters: find(true).counters.clone(), score: None };
    incomplete.counters.remove("DRAM_Bound");
    assert_eq!(ask(&incomplete).1.latency, Latency::NoAnswer(NoAnswer::NoHistory));
    incomplete.counters.insert("DRAM_Bound".to_owned(), f32::NAN);
    assert_eq!(ask(&incomplete).1.latency, Latency::NoAnswer(NoAnswer::Drifted));
}

#[test]
fn an_unusable_model_is_the_reason_of_the_decision() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("model.onnx");
    let check = |bytes: Option<&[u8]>, want: Reason, words: &str| {
        if let Some(bytes) = bytes {
            std::fs::write(&file, bytes).unwrap();
        }
        let predictor = Predictor::load(&file, None);
        assert_eq!(predictor.decide(&known()).reason, want);
        let error = predictor.errors().next().unwrap().to_string();
        assert!(error.contains(words) && error.contains("model.onnx"), "{error:?} does not contain {words:?}");
    };
    check(None, Reason::NoModel, "cannot read");
    check(Some(b""), Reason::BadModel, "metadata");
    check(Some(b"not a model at all"), Reason::BadModel, "not an ONNX model");
    check(Some(&std::fs::read(testdata("insensitive.onnx")).unwrap()), Reason::BadModel, "kind \"insensitive\"");
    let newer = replaced("untouched.onnx", "\"schema\": 1", "\"schema\": 2");
    check(Some(&newer), Reason::BadModel, "metadata of version 2");
    check(Some(&replaced("untouched.onnx", "\"history_p5\"", "\"history_p6\"")), Reason::BadModel, "\"history_p6\" is in the place of");
    check(Some(&replaced("untouched.onnx", "BRANCH_LEQ", "BRANCH_GTE")), Reason::BadModel, "BRANCH_GTE");
}

/// Returns a model's bytes with every occurrence of a text replaced by one of the same length.
fn replaced(name: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(testdata(name)).unwrap();
    let places: Vec<usize> = bytes.windows(from.len()).enumerate().filter(|(_, seen)| *seen == from.as_bytes()).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "{name} does not hold {from:?}");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

/// Evaluates a model from any bytes. It must not panic.
fn serve(bytes: &[u8]) -> Result<(), Error> {
    let model = Untouched::parse(bytes, Path::new("hostile.onnx"))?;
    let request = known();
    let recent = request.history.clone().unwrap();
    if let Ok(ratio) = model.predict(&request, recent) {
        assert!((0.0..=1.0).contains(&ratio), "{ratio}");
    }
    Ok(())
}

#[test]
fn a_truncated_model_is_an_error() {
    let bytes = std::fs::read(testdata("untouched.onnx")).unwrap();
    for end in 0..bytes.len() {
        // The metadata is near the end: a model without all of it is refused.
        if end % 7 == 0 || end + 2000 > bytes.len() {
            let cut = serve(&bytes[..end]);
            assert!(cut.is_err() || end + 64 > bytes.len(), "the first {end} of {} bytes are accepted", bytes.len());
        }
    }
    serve(&bytes).unwrap();
}

proptest! {
    #[test]
    fn a_tampered_model_never_panics(changes in prop::collection::vec((0usize..1 << 20, any::<u8>()), 1..6)) {
        let mut bytes = std::fs::read(testdata("untouched.onnx")).unwrap();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let _ = serve(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(serve(&bytes).is_err());
    }

    #[test]
    fn no_decision_exceeds_the_requested_memory(
        memory_bytes in any::<u64>(), cores in any::<u32>(), arrival in any::<i64>(), history in prop::collection::vec(any::<f32>(), 0..300),
    ) {
        let request = Request { memory_bytes: Bytes(memory_bytes), cores, arrival, history: Some(history), ..known() };
        let decision = predictor().decide(&request);
        prop_assert!(decision.pool_bytes.0 <= memory_bytes && decision.pool_bytes.0.is_multiple_of(SLICE.0));
    }
}
