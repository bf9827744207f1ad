use proptest::prelude::*;

use pool::{Config, EmcId};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(second: u64) -> Ns {
    Ns(second * SECOND)
}

/// Two EMCs of four slices, hosts a and b, leases of ten seconds.
fn book() -> Book {
    let config = Config { emc_slices: vec![4, 4], hosts: 2, buffer_slices: 0, answer_within: at(5), ask_again_after: at(20) };
    let hosts = ["a", "b"].map(|name| Host { name: name.to_owned(), ..Host::default() });
    let terms = Terms { lease: at(10), hosts: vec!["a".to_owned(), "b".to_owned()] };
    let layout = Layout { directory: "/pool".into(), slice_bytes: units::Bytes(1 << 30) };
    Book::new(Pool::new(config), hosts.to_vec(), BTreeMap::new(), 1, terms, layout, Ns(0))
}

fn lease(host: &str) -> Ask {
    Ask::Lease { host: host.to_owned(), instance: "test".to_owned() }
}

fn assign(host: &str, epoch: u64, request: &str, vm: &str, slices: u32) -> Ask {
    Ask::Assign { host: host.to_owned(), epoch, request: request.to_owned(), vm: vm.to_owned(), slices }
}

fn give_back(host: &str, epoch: u64, request: &str, vm: &str) -> Ask {
    Ask::Return { host: host.to_owned(), epoch, request: request.to_owned(), vm: vm.to_owned() }
}

fn slice(emc: u16, index: u32) -> SliceId {
    SliceId { emc: EmcId(emc), index }
}

fn code(followed: Result<Answer, Refused>) -> Code {
    followed.unwrap_err().error
}

#[test]
fn an_epoch_that_is_over_is_void() {
    let mut book = book();
    let renew = |epoch| Ask::Renew { host: "a".to_owned(), epoch };
    assert_eq!(code(book.follow(at(0), &renew(0))), Code::Fenced);
    book.follow(at(0), &lease("a")).unwrap();
    book.follow(at(9), &renew(1)).unwrap();
    book.follow(at(18), &assign("a", 1, "r", "vm", 1)).unwrap();
    assert_eq!(code(book.follow(at(19), &renew(1))), Code::Fenced, "also before anybody has noticed");
    book.follow(at(19), &lease("a")).unwrap();
    assert_eq!(code(book.follow(at(19), &renew(1))), Code::Fenced);
    book.follow(at(20), &Ask::Tick).unwrap();
    book.follow(at(20), &renew(2)).unwrap();
    book.follow(at(30), &Ask::Tick).unwrap();
    assert!(!book.hosts[0].leased);
    assert_eq!(code(book.follow(at(30), &renew(2))), Code::Fenced);
}

#[test]
fn only_what_nobody_guards_is_taken_back() {
    let mut book = book();
    let abandoned = |index| Ask::Abandoned { slice: slice(0, index), generation: Generation(1) };
    book.follow(at(0), &lease("a")).unwrap();
    book.follow(at(0), &assign("a", 1, "r", "vm", 2)).unwrap();
    assert_eq!(book.unguarded(at(9)).count(), 0);
    assert_eq!(code(book.follow(at(9), &abandoned(0))), Code::Stale);
    assert_eq!(book.unguarded(at(10)).count(), 2, "also before anybody has noticed");
    book.follow(at(10), &abandoned(0)).unwrap();
    // The host is back in between: what is left is its own again, and its VM is told to be short of one.
    let Answer::Lease(back) = book.follow(at(11), &lease("a")).unwrap() else { panic!() };
    assert_eq!((back.assignments[0].asked, back.assignments[0].slices.len()), (2, 1));
    assert_eq!(code(book.follow(at(11), &abandoned(1))), Code::Stale);
    assert_eq!(code(book.follow(at(11), &assign("a", 2, "r", "vm", 2))), Code::Over);
}

#[test]
fn requests_that_come_late_do_nothing() {
    let mut book = book();
    book.follow(at(0), &lease("a")).unwrap();
    let first = assign("a", 1, "r1", "vm", 1);
    book.follow(at(0), &first).unwrap();
    let back = give_back("a", 1, "r2", "vm");
    book.follow(at(1), &back).unwrap();
    assert_eq!(code(book.follow(at(1), &first)), Code::Over);
    book.follow(at(1), &assign("a", 1, "r3", "vm", 1)).unwrap();
    book.follow(at(2), &back).unwrap();
    assert_eq!(book.pool().counts().online, 1, "the second assignment is not given back by the first return, said twice");
    // A new epoch fences them instead of remembering them.
    book.follow(at(3), &lease("a")).unwrap();
    assert!(book.hosts[0].ended.is_empty());
    assert_eq!(code(book.follow(at(3), &back)), Code::Fenced);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut book = book();
    book.follow(at(0), &lease("a")).unwrap();
    for round in 0..ENDED_MAX as u64 {
        book.follow(at(0), &assign("a", 1, &format!("r{round}"), "vm", 1)).unwrap();
        book.follow(at(0), &give_back("a", 1, &format!("d{round}"), "vm")).unwrap();
        let (slice, generation) =
            book.pool().slices().find(|(_, record)| record.state.owner().is_some()).map(|(id, of)| (id, of.generation)).unwrap();
        book.follow(at(0), &Ask::Offlined { host: "a".to_owned(), epoch: 1, slice, generation }).unwrap();
        book.follow(at(0), &Ask::Scrubbed { slice, generation }).unwrap();
    }
    assert_eq!(book.hosts[0].ended.len(), ENDED_MAX);
    assert_eq!((book.pool().counts().free, book.vms.len()), (8, 0));
}

/// Anything that two hosts, an operator and a keeper may say, in or out of order.
fn any_ask() -> impl Strategy<Value = Ask> {
    let host = || prop_oneof![Just("a"), Just("b"), Just("z")];
    let name = || (0u32..4).prop_map(|name| format!("n{name}"));
    let place = || (0u16..3, 0u32..5, 0u32..4).prop_map(|(emc, index, generation)| (slice(emc, index), Generation(generation)));
    prop_oneof![
        2 => host().prop_map(lease),
        2 => (host(), 0u64..4).prop_map(|(host, epoch)| Ask::Renew { host: host.to_owned(), epoch }),
        6 => (host(), 0u64..4, name(), name(), 0u32..4).prop_map(|(host, epoch, r, vm, n)| assign(host, epoch, &r, &vm, n)),
        4 => (host(), 0u64..4, name(), name()).prop_map(|(host, epoch, r, vm)| give_back(host, epoch, &r, &vm)),
        4 => (host(), 0u64..4, place()).prop_map(|(host, epoch, (slice, generation))| Ask::Offlined { host: host.to_owned(), epoch, slice, generation }),
        2 => (host(), 0u64..4, place()).prop_map(|(host, epoch, (slice, generation))| {
            Ask::OfflineFailed { host: host.to_owned(), epoch, slice, generation, why: "because".to_owned() }
        }),
        4 => place().prop_map(|(slice, generation)| Ask::Scrubbed { slice, generation }),
        2 => place().prop_map(|(slice, generation)| Ask::Abandoned { slice, generation }),
        2 => Just(Ask::Tick),
        1 => (0u16..3).prop_map(|emc| Ask::EmcFailed(EmcId(emc))),
        1 => (0u16..3).prop_map(|emc| Ask::EmcRepaired(EmcId(emc))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_is_said_the_book_is_true(story in proptest::collection::vec((any_ask(), 0u64..4), 0..80)) {
        let mut book = book();
        let mut now = 0;
        for (ask, pause) in story {
            now += pause;
            let before = book.clone();
            let followed = book.follow(at(now), &ask);
            prop_assert!(followed.is_ok() || book == before, "a refusal changes nothing: {ask:?}");
            prop_assert_eq!(book.pool().audit(), Ok(()));
            // The service knows the VMs that the core knows, and no others.
            prop_assert!(book.vms.keys().eq(book.pool().leases().keys()));
            // Said again at once, the answer is the same, and nothing more happens.
            if matches!(ask, Ask::Assign { .. } | Ask::Return { .. }) && followed.is_ok() {
                let after = book.clone();
                prop_assert_eq!(book.follow(at(now), &ask), followed);
                prop_assert_eq!(&book, &after);
            }
            prop_assert!(before.pool().leases().iter().all(|(vm, _)| vm.0 < book.next_vm));
        }
    }
}
