//! The loop that learns: guests end on a host, their records are sent and imported, a model is trained on them, signed and published,
//! the host follows it, and the next guest of a customer gets pool memory.
//!
//! `make test-learn` trains with LightGBM: it names a Python with the packages in `THERMOCLINE_LEARN`. Without that, a model that was
//! trained earlier takes the place of the training's; all other steps are the same. The hypervisor is simulated.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use host::Simulated;
use manager::api::Slices;
use pool_host::host::Host;
use pool_host::prediction::{Answer, Prediction};
use pool_host::share::Why;
use pool_host::vm::{Record, Request};
use program::{check, refused};
use units::Bytes;

mod host;
#[path = "../rollouts/program.rs"]
mod program;

const SIGNED: &str = "--store models-store --root root.json --keys keys";

const MEMORY: Bytes = Bytes::gib(4);

/// The end of the eighth day, at which the training of both models ends.
const TRAINED_UNTIL: i64 = 8 * 86_400;

/// The customer whose guests are counted, and its guests before the one that gets slices.
const CUSTOMER: u64 = 5;
const GUESTS: i64 = 50;

/// Guests of each other customer: more, so that the history of [`CUSTOMER`] is not longer than any of the training.
const GUESTS_OF_OTHERS: i64 = 64;

/// A guest whose features the model of the tests knows.
fn request(name: &str, customer: u64, arrival: i64) -> Request {
    let vm = predict::Request {
        customer: Some(customer),
        vm_type: Some("F2".to_owned()),
        guest_os: Some("linux-c".to_owned()),
        location: Some("region-e".to_owned()),
        cores: 2,
        memory_bytes: MEMORY,
        arrival,
        ..predict::Request::default()
    };
    Request { name: name.to_owned(), vm, pool_bytes: None, description: None }
}

/// A guest's whole life, in which it touches so much. Returns its record at the start.
fn live(host: &Host, simulated: &Simulated, request: Request, local: Bytes, pool: Bytes) -> Record {
    let name = request.name.clone();
    simulated.touch(local, pool);
    let record = host.start(request).unwrap();
    host.stop(&name, Duration::ZERO).unwrap();
    record
}

/// Eight days of guests of seven customers, in the order of their arrival. A customer's guests leave about the same share untouched.
fn eight_days(host: &Host, simulated: &Simulated) {
    let of = |customer: u64| if customer == CUSTOMER { GUESTS } else { GUESTS_OF_OTHERS };
    let mut guests: Vec<(i64, u64, i64)> = (0..7)
        .flat_map(|customer| (0..of(customer)).map(move |guest| (guest, customer)))
        .map(|(guest, customer)| ((guest + 1) * TRAINED_UNTIL / of(customer) - 1 - i64::try_from(6 - customer).unwrap(), customer, guest))
        .collect();
    guests.sort_unstable();
    for (arrival, customer, guest) in guests {
        let touched_mib = 2_600 - 250 * customer + u64::try_from(guest * 37 % 200).unwrap();
        let request = request(&format!("vm-{customer}-{guest}"), customer, arrival);
        let record = live(host, simulated, request, Bytes::mib(touched_mib), Bytes::ZERO);
        assert_eq!((record.share.why, record.model), (Why::NoPrediction, None), "{}", record.request.name);
    }
}

fn configure(at: &Path) {
    let text = format!(
        "name = \"host-a\"\nlocal_memory = \"64GiB\"\nstate = \"state\"\nlives_store = \"{0}/lives\"\n[manager]\nurl = \"http://127.0.0.1:1\"\n\
         [predict]\nuntouched = \"models/untouched.onnx\"\nroot = \"root.json\"\nstore = \"{0}/models-store\"\n",
        at.display()
    );
    std::fs::write(at.join("host.toml"), text).unwrap();
}

/// Trains on the records of the store, or takes the model of the tests. Returns the model.
fn train(at: &Path) -> PathBuf {
    let Some(python) = std::env::var_os("THERMOCLINE_LEARN") else {
        return Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/predict/testdata/untouched.onnx").canonicalize().unwrap();
    };
    let output = Command::new(python)
        .args(["-m", "thermocline.learn", "train", "untouched", "--lives", "lives", "--out", "untouched.onnx"])
        .args(["--program", env!("CARGO_BIN_EXE_thermocline")])
        .env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python").canonicalize().unwrap())
        .current_dir(at)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    at.join("untouched.onnx")
}

#[test]
fn the_51st_guest_of_a_customer_gets_slices() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    configure(at);
    let simulated = Simulated::new(at);
    let host = simulated.host("host-a", &at.join("state"), &at.join("models/untouched.onnx"));
    refused(at, "pool import --store lives --out vms.parquet", &["lives has no file", "pool lives send"]);
    eight_days(&host, &simulated);
    check(at, "pool lives send --config host.toml", &["sent: host-a/"]);
    check(at, "pool import --store lives --out vms.parquet", &["434 VMs of 434 rows"]);

    let model = train(at);
    check(at, "rollout keygen keys", &[]);
    check(at, &format!("rollout init {SIGNED}"), &[]);
    check(at, &format!("pool models publish --untouched {} {SIGNED}", model.display()), &["bundle 1 (models-"]);
    check(at, &format!("rollout assign --rollout r --bundle 1 --share 100% --control 0% {SIGNED}"), &["follow bundle 1"]);
    check(at, "pool models fetch --config host.toml", &["models/untouched.onnx written"]);
    host.refresh_models();

    let (tomorrow, local) = (TRAINED_UNTIL + 3 * 3_600, Bytes::mib(1_500));
    let record = live(&host, &simulated, request("the-51st", CUSTOMER, tomorrow), local, Bytes::ZERO);
    assert_eq!((record.share.why, record.model), (Why::Untouched, Some(TRAINED_UNTIL)), "{:?}", record.events);
    assert!(record.share.slices > Slices(0));
    println!("{} slices of 128 MiB, of a guest of {} MiB", record.share.slices.0, MEMORY.0 >> 20);
    let mut unseen = request("of-an-unseen-type", CUSTOMER, tomorrow);
    unseen.vm.vm_type = Some("Z9".to_owned());
    for (request, answer) in [(request("a-stranger", 1_000, tomorrow), Answer::NoHistory), (unseen, Answer::UnseenCategory)] {
        let record = live(&host, &simulated, request, local, Bytes::ZERO);
        let prediction = Some(Prediction { model: TRAINED_UNTIL, answer });
        assert_eq!((record.share.why, record.model, record.prediction), (Why::NoPrediction, None, prediction));
    }
    // What became of them reaches the operator the next night.
    check(at, "pool lives send --config host.toml", &["sent: host-a/"]);
    let judge = "--format json pool models judge --store lives --target 4% --guests 1 --least-life 0s";
    check(at, judge, &["\"guests\":1,\"touched\":0", "\"asked\":2,\"unpredicted\":1", "\"verdict\":\"no_harm\""]);
}
