//! Potentials at thresholds that the tracker did not distinguish.

use super::*;

/// A journal of an observed job with thresholds of one scan.
fn observed(tracker: &str, resolved_to: Option<Age>) -> Vec<Record> {
    let mut records = journal(times(400, Period { current: 100, cold: 40, veto: Some(Veto::ObserveOnly), ..Period::default() }));
    for record in &mut records {
        match record {
            Record::Job(job) => tracker.clone_into(&mut job.tracker),
            Record::Period(period) => {
                period.resolved_to = resolved_to;
                period.step.threshold = Some(thresholds().as_slice()[1]);
            }
            _ => {}
        }
    }
    records
}

#[test]
fn an_unresolved_potential_is_unknown() {
    let check = |tracker: &str, resolved_to: Option<u8>, unresolved: u64| {
        let plan = of_records(observed(tracker, resolved_to.map(Age)).into_iter().map(Ok), &options(10_000)).unwrap();
        let job = &plan.jobs[0];
        assert_eq!((job.tracker.as_str(), job.unresolved_periods), (tracker, unresolved), "{resolved_to:?}");
        assert_eq!(job.firm_potential_bytes.is_none(), unresolved > 0);
        assert_eq!(plan.jobs_by_tracker, [(tracker.to_owned(), 1)].into());
    };
    let above = thresholds().as_slice()[1].0;
    assert!(above > 2);
    check("page_idle", Some(255), 0);
    check("sampled", Some(above), 0);
    check("sampled", Some(above - 1), 400);
    check("lru_gen", Some(2), 400);
    // Journals of older agents do not hold the resolution; that of lru_gen is known.
    check("page_idle", None, 0);
    check("lru_gen", None, 400);
}
