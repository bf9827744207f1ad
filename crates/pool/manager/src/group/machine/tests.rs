//! Tests of the state machine of a member.

use std::path::Path;

use openraft::CommittedLeaderId;

use super::*;
use crate::api::Slices;
use crate::ledger::Request;

fn settings(directory: &Path) -> Settings {
    let text = "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
                emcs = [{ slices = 2, device = \"device\" }]\nhosts = [\"a\"]\n\
                [group]\nmembers = [\"http://h1:1\", \"http://h2:1\", \"http://h3:1\"]\nmember = 1\n";
    Settings::parse(&directory.join("pool.toml"), text).unwrap()
}

fn core(settings: &Settings) -> Core {
    std::fs::create_dir_all(&settings.pool_dir).unwrap();
    Core::open(settings, Storage::open(&settings.ledger, &settings.pool_dir).unwrap(), Ns(0)).unwrap()
}

fn entry(index: u64, change: Change) -> Entry<Types> {
    Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), index), payload: EntryPayload::Normal(change) }
}

/// The entry that a leader with this state proposes.
fn proposed(core: &Core, seconds: u64, request: Request) -> Change {
    let (ledger, after, _, rows) = core.base();
    let what = What::Requests { until: ledger.leases_until().to_vec(), rows, requests: vec![request] };
    Change { after, now: Ns(seconds * 1_000_000_000), what }
}

fn lease() -> Request {
    Request::Lease { host: "a".to_owned(), instance: "a-1".to_owned() }
}

/// A member with the rules of its configuration, as entry 1.
fn with_rules(settings: &Settings) -> Core {
    let mut core = core(settings);
    let rules = Change { after: 0, now: Ns(1_000_000_000), what: What::Rules(Rules::of(settings)) };
    assert_eq!(core.apply(entry(1, rules)).unwrap(), Effect(true));
    core
}

#[test]
fn an_entry_for_an_earlier_state_has_no_effect() {
    let directory = tempfile::tempdir().unwrap();
    let mut core = with_rules(&settings(directory.path()));
    assert_eq!(core.ledger.to_scrub().count(), 2, "new slices are zeroed first");
    let late = proposed(&core, 2, lease());
    assert_eq!(core.apply(entry(2, late.clone())).unwrap(), Effect(true));
    let epoch = core.ledger.hosts[0].epoch;
    assert_eq!(core.apply(entry(3, late)).unwrap(), Effect(false), "it was made for the state before entry 2");
    assert_eq!((core.ledger.hosts[0].epoch, core.applied().unwrap().index), (epoch, 3));
}

#[test]
fn a_member_with_other_rows_stops() {
    let directory = tempfile::tempdir().unwrap();
    let mut core = with_rules(&settings(directory.path()));
    let mut change = proposed(&core, 2, lease());
    if let What::Requests { rows, .. } = &mut change.what {
        *rows = Hash::default();
    }
    let error = core.apply(entry(2, change)).unwrap_err().to_string();
    assert!(error.contains("not those of the leader") && error.contains("--join"), "{error}");
    let refused = proposed(&core, 2, Request::Return { host: "a".to_owned(), epoch: 7, request: "r".to_owned(), vm: "vm".to_owned() });
    let error = core.apply(entry(2, refused)).unwrap_err().to_string();
    assert!(error.contains("refused here"), "{error}");
}

#[test]
fn a_member_continues_after_the_entry_that_it_has_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    let mut before = with_rules(&settings);
    let change = proposed(&before, 2, lease());
    before.apply(entry(2, change)).unwrap();
    let (ledger, change, now, rows) = before.base();
    drop(before);
    let after = core(&settings);
    assert_eq!((after.applied().unwrap().index, after.base().1, after.base().2, after.base().3), (2, change, now, rows));
    assert!(!after.ledger.differs(&ledger));
}

#[test]
fn a_copy_gives_another_member_the_same_state() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut from = with_rules(&settings(one.path()));
    let change = proposed(&from, 2, lease());
    from.apply(entry(2, change)).unwrap();
    let mut to = with_rules(&settings(other.path()));
    to.replace(&from.storage.export().unwrap()).unwrap();
    assert_eq!((to.position.clone(), to.storage.rows()), (from.position.clone(), from.storage.rows()));
    // Both apply the next entry, and the copy is on disk.
    let assign = Request::EmcFailed(pool::EmcId(0));
    let change = proposed(&from, 3, assign);
    assert_eq!(from.apply(entry(3, change.clone())).unwrap(), to.apply(entry(3, change)).unwrap());
    let rows = to.storage.rows();
    drop(to);
    assert_eq!(core(&settings(other.path())).storage.rows(), rows);
    assert!(with_rules(&settings(tempfile::tempdir().unwrap().path())).replace(b"{}").is_err(), "no copy");
}

#[test]
fn other_rules_keep_what_is_assigned() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    let mut core = with_rules(&settings);
    let mut grown = settings.clone();
    grown.emcs[0].slices = 3;
    grown.hosts.push("b".to_owned());
    let (_, after, ..) = core.base();
    let rules = Change { after, now: Ns(2_000_000_000), what: What::Rules(Rules::of(&grown)) };
    assert_eq!(core.apply(entry(2, rules)).unwrap(), Effect(true));
    assert_eq!((core.ledger.to_scrub().count(), core.ledger.hosts.len()), (3, 2));
    assert_eq!(core.ledger.pool().grantable(), Slices::ZERO);
    let fewer = Rules::of(&Settings { emcs: Vec::new(), ..settings });
    assert!(core.check_rules(&fewer, Ns(3_000_000_000)).is_err(), "slices cannot be removed");
}
