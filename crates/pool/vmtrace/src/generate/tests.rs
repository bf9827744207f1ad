//! Properties of generated traces, and their fit.

use proptest::prelude::*;

use super::*;
use crate::read::Trace;

fn vms(settings: Settings) -> Vec<Vm> {
    Stream::new(settings).map(|drawn| drawn.vm).collect()
}

const SMALL: Settings = Settings { seed: 1, vms: 3_000, clusters: 10, days: 10 };

#[test]
fn the_same_seed_gives_the_same_trace() {
    assert_eq!(vms(SMALL), vms(SMALL));
    assert_ne!(vms(SMALL), vms(Settings { seed: 2, ..SMALL }));
}

#[test]
fn a_file_holds_the_generated_vms() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let (written, _) = generate(&SMALL, &path, &mut || ()).unwrap();
    let trace = Trace::open(&path).unwrap();
    let read: Vec<_> = trace.vms().map(Result::unwrap).collect();
    assert_eq!(written.vms, read.len() as u64);
    let drawn: Vec<_> = (0..).zip(vms(SMALL)).map(|(id, vm)| Vm { id, ..vm }).collect();
    assert_eq!(read, drawn);
    let about = trace.about();
    assert!(about.generated && about.origin.contains("seed 1") && about.ends == 864_000);
    assert_eq!((about.names.vm_types.len(), about.names.vm_types[7].as_str(), about.names.locations.len()), (18, "general-2", 2));
}

/// A smaller trace than the one that was fitted, with other seeds, still resembles the published figures.
#[test]
fn generated_traces_fit_the_published_figures() {
    for seed in [1, 2] {
        let mut tally = Tally::new(100);
        Stream::new(Settings { seed, vms: 60_000, clusters: 100, days: 40 }).for_each(|drawn| tally.count(&drawn));
        for row in tally.rows(None) {
            // A figure that is published as a lower bound may be exceeded.
            let (least, most) = if row.what.ends_with(", over") { (1.0, 1.9) } else { (0.7, 1.4) };
            assert!((least..=most).contains(&row.ratio), "seed {seed}: {row:?}");
        }
    }
}

/// Models can learn from customers: a VM resembles the previous VM of its customer more than other VMs.
#[test]
fn vms_of_a_customer_resemble_each_other() {
    let mut last = std::collections::HashMap::new();
    let (mut near, mut far, mut pairs) = (0.0, 0.0, 0.0);
    let mut before = 0.0;
    for vm in vms(Settings { vms: 20_000, ..SMALL }) {
        let untouched = vm.untouched_ratio.unwrap();
        if let Some(earlier) = last.insert((vm.customer, vm.vm_type), untouched) {
            near += (untouched - earlier) * (untouched - earlier);
            far += (untouched - before) * (untouched - before);
            pairs += 1.0;
        }
        before = untouched;
    }
    assert!(pairs > 10_000.0 && near < 0.8 * far, "{near} {far} {pairs}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every VM is valid, in order of arrival, and runs at some time of the trace.
    #[test]
    fn every_vm_is_valid(seed: u64, vms_requested in 1_u64..2_000, clusters in 1_u32..20, days in 1_u32..20) {
        let settings = Settings { seed, vms: vms_requested, clusters, days };
        let mut last = i64::MIN;
        for vm in vms(settings) {
            prop_assert!(vm.check().is_ok(), "{:?}", vm.check());
            prop_assert!(vm.arrival >= last && vm.arrival <= settings.ends() && vm.cluster < clusters);
            prop_assert!(vm.departure.is_none_or(|departure| (0..=settings.ends()).contains(&departure)));
            prop_assert!(vm.slowdown_140ns >= vm.slowdown_64ns);
            last = vm.arrival;
        }
    }
}
