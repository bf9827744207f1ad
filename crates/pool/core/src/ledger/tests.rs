use proptest::prelude::*;

use super::*;

const HOSTS: u16 = 3;
const MS: u64 = 1_000_000;

fn config(emc_slices: &[u32], buffer_slices: u32) -> Config {
    Config {
        emc_slices: emc_slices.iter().copied().map(Slices).collect(),
        hosts: HOSTS,
        buffer_slices: Slices(buffer_slices),
        answer_within: Ns(1_000 * MS),
        ask_again_after: Ns(5_000 * MS),
    }
}

fn assign(vm: u64, host: u16, slices: u32) -> Command {
    Command::Assign { vm: VmId(vm), host: HostId(host), slices: Slices(slices) }
}

/// Applies commands one second apart. Effects are not carried out.
fn after(pool: &mut Pool, commands: &[Command]) -> (Vec<Effect>, Vec<Refusal>) {
    let (mut effects, mut refusals) = (Vec::new(), Vec::new());
    for (second, &command) in (1u64..).zip(commands) {
        refusals.extend(pool.apply(Ns(second * 1_000 * MS), command, &mut effects).err());
        pool.audit().unwrap();
    }
    (effects, refusals)
}

/// Carries out effects until there are none.
fn settle(pool: &mut Pool, now: Ns, effects: &mut Vec<Effect>) {
    while let Some(effect) = effects.pop() {
        let answer = match effect {
            Effect::Offline { slice, generation, .. } => Command::Offlined { slice, generation },
            Effect::Scrub { slice, generation } => Command::Scrubbed { slice, generation },
            Effect::Online { .. } | Effect::Lost { .. } => continue,
        };
        let mut more = Vec::new();
        // Reports about effects before a failure are stale.
        let _ = pool.apply(now, answer, &mut more);
        effects.extend(more);
    }
}

#[test]
fn a_slice_is_assigned_released_and_free_again() {
    let mut pool = Pool::new(config(&[4], 0));
    let (mut effects, refusals) = after(&mut pool, &[assign(1, 0, 3), Command::Return { vm: VmId(1) }]);
    assert!(refusals.is_empty());
    let counts = |online, offlining, scrubbing| Counts {
        free: 4 - online - offlining - scrubbing,
        online,
        offlining,
        scrubbing,
        ..Counts::default()
    };
    assert_eq!(*pool.counts(), counts(0, 3, 0));
    assert_eq!(pool.permissions(EmcId(0)).unwrap().flatten().count(), 3, "the host may access them until they are offline");
    let first = SliceId { emc: EmcId(0), index: 0 };
    pool.apply(Ns(0), Command::Offlined { slice: first, generation: Generation(1) }, &mut effects).unwrap();
    assert_eq!(*pool.counts(), counts(0, 2, 1));
    assert_eq!(pool.permissions(EmcId(0)).unwrap().flatten().count(), 2);
    settle(&mut pool, Ns(0), &mut effects);
    assert_eq!(*pool.counts(), counts(0, 0, 0));
    assert_eq!(pool.returned(first), Some(Ns(2_000 * MS)));
    // The slice that has been free for longest is assigned first.
    let (effects, _) = after(&mut pool, &[assign(2, 1, 1)]);
    assert_eq!(effects, [Effect::Online { host: HostId(1), slice: SliceId { emc: EmcId(0), index: 3 }, generation: Generation(1) }]);
}

#[test]
fn refusals_change_nothing() {
    let check = |emcs: &[u32], buffer, before: &[Command], command, expected: Refusal| {
        let mut pool = Pool::new(config(emcs, buffer));
        after(&mut pool, before);
        let was = pool.clone();
        let mut effects = Vec::new();
        assert_eq!(pool.apply(Ns(0), command, &mut effects), Err(expected), "{command:?}");
        assert!(effects.is_empty() && pool == was, "{command:?}");
    };
    let short = |requested, grantable, releasing| Refusal::Short {
        requested: Slices(requested),
        grantable: Slices(grantable),
        releasing: Slices(releasing),
    };
    check(&[4], 0, &[], assign(1, 0, 0), Refusal::Nothing);
    check(&[4], 0, &[assign(1, 0, 1)], assign(1, 1, 1), Refusal::VmKnown(VmId(1)));
    check(&[4], 0, &[], assign(1, HOSTS, 1), Refusal::NoHost(HostId(HOSTS)));
    check(&[4], 0, &[Command::HostFailed(HostId(1))], assign(1, 1, 1), Refusal::NoHost(HostId(1)));
    check(&[4], 0, &[], Command::Return { vm: VmId(9) }, Refusal::VmUnknown(VmId(9)));
    check(&[4], 0, &[], Command::EmcFailed(EmcId(1)), Refusal::NoEmc(EmcId(1)));
    check(&[4], 0, &[Command::ManagerFailed], assign(1, 0, 1), Refusal::ManagerAway);
    let slice = SliceId { emc: EmcId(0), index: 0 };
    check(&[4], 0, &[assign(1, 0, 1)], Command::Offlined { slice, generation: Generation(1) }, Refusal::Stale(slice));
    check(
        &[4],
        0,
        &[assign(1, 0, 1), Command::Return { vm: VmId(1) }],
        Command::Offlined { slice, generation: Generation(0) },
        Refusal::Stale(slice),
    );
    // An assignment does not span EMCs, use the buffer, or use slices that are not offline yet.
    check(&[4, 3], 0, &[], assign(1, 0, 5), short(5, 4, 0));
    check(&[4], 2, &[], assign(1, 0, 3), short(3, 2, 0));
    check(&[4], 0, &[assign(1, 0, 3), Command::Return { vm: VmId(1) }], assign(2, 1, 2), short(2, 1, 3));
}

#[test]
fn failures_lose_only_affected_vms() {
    let lost = |effects: &[Effect]| -> Vec<(u64, Cause)> {
        let lost = effects.iter().filter_map(|effect| match *effect {
            Effect::Lost { vm, cause, .. } => Some((vm.0, cause)),
            _ => None,
        });
        lost.collect()
    };
    // VMs alternate between EMCs: the one with more free slices is used. VM 3 has released its slices before.
    let begin = [assign(1, 0, 2), assign(2, 1, 2), assign(3, 0, 1), Command::Return { vm: VmId(3) }];
    let check = |fault: &[Command], expected: &[(u64, Cause)], counts: Counts| {
        let mut pool = Pool::new(config(&[8, 8], 0));
        after(&mut pool, &begin);
        let (effects, _) = after(&mut pool, fault);
        assert_eq!(lost(&effects), expected, "{fault:?}");
        assert_eq!(*pool.counts(), counts, "{fault:?}");
    };
    let before = Counts { free: 11, online: 4, offlining: 1, ..Counts::default() };
    check(&[], &[], before);
    check(&[Command::EmcFailed(EmcId(0))], &[(1, Cause::Emc)], Counts { free: 6, online: 2, failed: 8, ..Counts::default() });
    check(
        &[Command::EmcFailed(EmcId(0)), Command::EmcRepaired(EmcId(0))],
        &[(1, Cause::Emc)],
        Counts { free: 6, online: 2, scrubbing: 8, ..Counts::default() },
    );
    check(&[Command::HostFailed(HostId(0))], &[(1, Cause::Host)], Counts { free: 11, online: 2, scrubbing: 3, ..Counts::default() });
    check(&[Command::ManagerFailed], &[], before);
    let away = [Command::ManagerFailed, Command::HostFailed(HostId(0))];
    check(&away, &[(1, Cause::Host)], Counts { free: 11, online: 2, orphaned: 3, ..Counts::default() });
    check(
        &[away[0], away[1], Command::ManagerBack],
        &[(1, Cause::Host)],
        Counts { free: 11, online: 2, scrubbing: 3, ..Counts::default() },
    );
}

#[test]
fn hosts_that_do_not_report_are_asked_again() {
    let mut pool = Pool::new(config(&[2], 0));
    after(&mut pool, &[assign(1, 0, 2), Command::Return { vm: VmId(1) }]);
    let slice = |index| SliceId { emc: EmcId(0), index };
    let mut tick = |second: u64| {
        let mut effects = Vec::new();
        pool.apply(Ns(second * 1_000 * MS), Command::Tick, &mut effects).unwrap();
        pool.audit().unwrap();
        (effects, *pool.counts())
    };
    assert_eq!(tick(2), (vec![], Counts { offlining: 2, ..Counts::default() }));
    assert_eq!(tick(3), (vec![], Counts { stuck: 2, ..Counts::default() }));
    assert_eq!(tick(7), (vec![], Counts { stuck: 2, ..Counts::default() }));
    let asked = |index| Effect::Offline { host: HostId(0), slice: slice(index), generation: Generation(1) };
    assert_eq!(tick(8), (vec![asked(0), asked(1)], Counts { offlining: 2, ..Counts::default() }));
    let mut effects = Vec::new();
    let report = |pool: &mut Pool, command, effects: &mut Vec<_>| pool.apply(Ns(9_000 * MS), command, effects);
    report(&mut pool, Command::OfflineFailed { slice: slice(0), generation: Generation(1) }, &mut effects).unwrap();
    // A late report is accepted.
    report(&mut pool, Command::Offlined { slice: slice(0), generation: Generation(1) }, &mut effects).unwrap();
    assert_eq!(effects, [Effect::Scrub { slice: slice(0), generation: Generation(1) }]);
    assert_eq!(pool.state(slice(0)), Some(State::Scrubbing { since: Ns(9_000 * MS) }));
}

#[test]
fn abandoned_slices_are_reclaimed_one_by_one() {
    let mut pool = Pool::new(config(&[4], 0));
    after(&mut pool, &[assign(1, 0, 2), assign(2, 1, 1), Command::Return { vm: VmId(2) }]);
    let abandoned = |index, generation| Command::Abandoned { slice: SliceId { emc: EmcId(0), index }, generation: Generation(generation) };
    let (effects, refusals) = after(&mut pool, &[abandoned(0, 1), abandoned(2, 1)]);
    assert_eq!((effects.len(), refusals.len()), (2, 0));
    assert_eq!((pool.slices_of(VmId(1)), pool.counts().scrubbing), (Slices(1), 2));
    after(&mut pool, &[abandoned(1, 1)]);
    assert_eq!((pool.leases().len(), pool.counts().scrubbing), (0, 3), "a VM without slices is removed");
    let slice = SliceId { emc: EmcId(0), index: 0 };
    let (_, refusals) =
        after(&mut pool, &[abandoned(0, 1), Command::Scrubbed { slice, generation: Generation(1) }, abandoned(0, 1), abandoned(3, 0)]);
    assert_eq!(refusals.len(), 3, "the slices have no owner already");
}

/// Any command to a pool of two EMCs with six slices each, valid or not.
fn any_command() -> impl Strategy<Value = Command> {
    let slice =
        || (0u16..2, 0u32..6, 0u32..5).prop_map(|(emc, index, generation)| (SliceId { emc: EmcId(emc), index }, Generation(generation)));
    prop_oneof![
        6 => (0u64..8, 0..=HOSTS, 0u32..5).prop_map(|(vm, host, slices)| assign(vm, host, slices)),
        4 => (0u64..8).prop_map(|vm| Command::Return { vm: VmId(vm) }),
        4 => slice().prop_map(|(slice, generation)| Command::Offlined { slice, generation }),
        2 => slice().prop_map(|(slice, generation)| Command::OfflineFailed { slice, generation }),
        4 => slice().prop_map(|(slice, generation)| Command::Scrubbed { slice, generation }),
        2 => slice().prop_map(|(slice, generation)| Command::Abandoned { slice, generation }),
        2 => Just(Command::Tick),
        1 => (0u16..3).prop_map(|emc| Command::EmcFailed(EmcId(emc))),
        1 => (0u16..3).prop_map(|emc| Command::EmcRepaired(EmcId(emc))),
        1 => (0..=HOSTS).prop_map(|host| Command::HostFailed(HostId(host))),
        1 => (0..=HOSTS).prop_map(|host| Command::HostBack(HostId(host))),
        1 => Just(Command::ManagerFailed),
        1 => Just(Command::ManagerBack),
    ]
}

/// Commands, each with whether effects are carried out after it.
fn any_commands() -> impl Strategy<Value = Vec<(Command, bool)>> {
    proptest::collection::vec((any_command(), any::<bool>()), 0..120)
}

proptest! {
    // No slice has two owners, and memory is never lost: `audit` recounts both after every command.
    #[test]
    fn no_slice_has_two_owners_and_memory_is_never_lost(commands in any_commands(), buffer in 0u32..4) {
        let mut pool = Pool::new(config(&[6, 6], buffer));
        let mut effects = Vec::new();
        for (second, (command, answer)) in (0u64..).zip(commands) {
            let before = (pool.clone(), effects.len());
            let refused = pool.apply(Ns(second * 700 * MS), command, &mut effects).is_err();
            prop_assert!(!refused || (pool == before.0 && effects.len() == before.1), "a refusal changes nothing");
            prop_assert_eq!(pool.audit(), Ok(()));
            if answer {
                settle(&mut pool, Ns(second * 700 * MS), &mut effects);
                prop_assert_eq!(pool.audit(), Ok(()));
            }
        }
    }

    #[test]
    fn every_vm_that_left_returned_its_slices(commands in any_commands()) {
        let mut pool = Pool::new(config(&[6, 6], 0));
        let mut effects = Vec::new();
        for (second, &(command, answer)) in (0u64..).zip(&commands) {
            let _ = pool.apply(Ns(second * MS), command, &mut effects);
            if answer {
                settle(&mut pool, Ns(second * MS), &mut effects);
            }
        }
        // All components work again, all VMs leave, and all effects are carried out or retried.
        let mut now = 1_000 * MS;
        let mut all = vec![Command::ManagerBack];
        all.extend((0..2).map(|emc| Command::EmcRepaired(EmcId(emc))));
        all.extend((0..8).map(|vm| Command::Return { vm: VmId(vm) }));
        all.extend([Command::Tick; 3]);
        for command in all {
            now += 6_000 * MS;
            let _ = pool.apply(Ns(now), command, &mut effects);
            settle(&mut pool, Ns(now), &mut effects);
        }
        prop_assert_eq!(*pool.counts(), Counts { free: 12, ..Counts::default() });
        prop_assert_eq!(pool.audit(), Ok(()));
    }

    #[test]
    fn the_buffer_is_kept(commands in any_commands(), buffer in 0u32..8) {
        let mut pool = Pool::new(config(&[6, 6], buffer));
        let mut effects = Vec::new();
        for (second, (command, answer)) in (0u64..).zip(commands) {
            let applied = pool.apply(Ns(second * MS), command, &mut effects).is_ok();
            if applied && matches!(command, Command::Assign { .. }) {
                prop_assert!(Slices(pool.counts().free) + pool.counts().releasing() >= Slices(buffer), "{:?}", pool.counts());
            }
            if answer {
                settle(&mut pool, Ns(second * MS), &mut effects);
            }
        }
    }

    // Late reports about earlier generations of a slice.
    #[test]
    fn a_message_about_an_earlier_owner_changes_nothing(before in any_commands()) {
        let mut pool = Pool::new(config(&[6, 6], 0));
        let mut effects = Vec::new();
        for (command, _) in before {
            let _ = pool.apply(Ns(0), command, &mut effects);
            settle(&mut pool, Ns(0), &mut effects);
        }
        for (slice, _) in pool.all() {
            let generation = pool.record(slice).unwrap().generation;
            for late in (0..generation.0).map(Generation) {
                for answer in [Command::Offlined { slice, generation: late }, Command::Scrubbed { slice, generation: late }, Command::OfflineFailed { slice, generation: late }] {
                    let was = pool.clone();
                    prop_assert!(pool.apply(Ns(0), answer, &mut effects).is_err());
                    prop_assert_eq!(&pool, &was);
                }
            }
        }
    }
}
