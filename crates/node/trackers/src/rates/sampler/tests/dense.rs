//! Dense samples.

use super::*;

#[test]
fn dense_samples_resolve_what_is_always_accessed() {
    let mut machine = Machine::default();
    for number in [1, 2, 8] {
        saturated(&mut machine, number, &[(0, 10)]);
    }
    machine.accessed.extend([(3 * BLOCK, 8), (4 * BLOCK, 7), (9 * BLOCK, 5)]);
    machine.dense.extend([(BLOCK, 12), (2 * BLOCK, 30), (3 * BLOCK, 6), (8 * BLOCK, 9)]);
    let sampled = [1, 2, 3, 4].map(|number| block(7, number, true));
    let slow = [block(8, 8, true), block(8, 9, true)];
    let (round, tracker) = run_with(Duration::ZERO, machine, 10_000, &sampled, &slow);

    let dense = |bits| (rate::page(bits, 125_000), bits);
    let before = |bits| (rate::page(bits, SECOND_US), bits);
    let found = |rated: &[BlockRate]| rated.iter().map(|rated| (rated.estimate, rated.samples)).collect::<Vec<_>>();
    // The second is split. Of the third and fourth, the first samples say more.
    assert_eq!((round.split, round.sampled[1].parts), (vec![sampled[1]], Some((512, 1))));
    assert_eq!(
        found(&[&round.sampled[..1], &round.sampled[2..]].concat()),
        [dense(bits(30, 12)), before(bits(10, 8)), before(bits(10, 7))]
    );
    assert_eq!(found(&round.slow), [dense(bits(30, 9)), before(bits(30, 15))]);
    assert_eq!(tracker.watches, [(6, 0), (6, 0), (2, 512), (3, 0)]);
    assert_eq!(round.measurable, rate::resolvable(30, 125_000));
}

#[test]
fn dense_samples_show_that_slow_memory_became_hot() {
    let mut machine = Machine::default();
    saturated(&mut machine, 8, &[(0, 10)]);
    machine.dense.insert(8 * BLOCK, 25);
    let machine = Rc::new(machine);
    let mut tracker = Fake { closest: DENSE, ..Fake::new(&machine, 600) };
    let mut sampler = Sampler::begin(blocks(Vec::new(), vec![block(7, 8, true)]), SETTINGS, 1, &tracker, &*machine);
    let mut latest = Vec::new();
    while tracker.watches.len() < 4 {
        if sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap().is_some() {
            break;
        }
        latest.extend(sampler.slow_by_last_stage().map(|rated| rated[0].samples));
    }
    assert_eq!(latest, [bits(10, 10), bits(30, 25), bits(30, 25)], "dense samples are the best that is known from then on");
}

#[test]
fn slow_memory_that_becomes_hot_within_a_period_is_known_before_its_end() {
    let latest = |usual: u32, after: usize| {
        let mut machine = Machine { turns_hot: Some((8 * BLOCK, after)), ..Machine::default() };
        machine.accessed.extend([(8 * BLOCK, usual), (9 * BLOCK, 3)]);
        machine.dense.insert(8 * BLOCK, 25);
        let machine = Rc::new(machine);
        let mut tracker = Fake { closest: DENSE, ..Fake::new(&machine, 600) };
        let slow = vec![block(7, 8, true), block(7, 9, true)];
        let mut sampler = Sampler::begin(blocks(Vec::new(), slow), SETTINGS, 1, &tracker, &*machine);
        let mut latest = Vec::new();
        loop {
            if let Some(round) = sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap() {
                let samples: Vec<_> = round.slow.iter().map(|rated| rated.samples).collect();
                return (latest, tracker.watches, samples);
            }
            latest.extend(sampler.slow_by_last_stage().map(|rated| rated[0].samples));
        }
    };
    let dense = bits(30, 25);
    let expected = (vec![bits(10, 4), bits(10, 10), dense], vec![(2, 0), (2, 0), (1, 0), (2, 0)], vec![dense, bits(30, 9)]);
    assert_eq!(latest(4, 1), expected, "in the stage after the first");
    let expected = (vec![bits(10, 4), bits(10, 4), bits(10, 10)], vec![(2, 0), (2, 0), (2, 0), (1, 0)], vec![dense, bits(30, 9)]);
    assert_eq!(latest(4, 2), expected, "in the last stage");
}

#[test]
fn slow_memory_that_is_too_hot_to_measure_is_known_after_the_dense_stage() {
    // Of 150 blocks one is accessed at all samples, which is chance, or two are.
    for (hot, expected) in [(1, false), (2, true)] {
        let mut machine = Machine::default();
        (0..hot).for_each(|number| saturated(&mut machine, 100 + number, &[(0, 10)]));
        machine.dense.extend((0..hot).map(|number| ((100 + number) * BLOCK, 30)));
        let machine = Rc::new(machine);
        let mut tracker = Fake { closest: DENSE, ..Fake::new(&machine, 600) };
        let slow = (100..250).map(|number| block(7, number, true)).collect();
        let mut sampler = Sampler::begin(blocks(Vec::new(), slow), SETTINGS, 1, &tracker, &*machine);
        let mut known = Vec::new();
        while sampler.tick(sampler.due(), &mut tracker, &*machine).unwrap().is_none() {
            if sampler.slow_by_last_stage().is_some() {
                known.push(sampler.slow_is_too_hot_to_measure());
            }
        }
        assert_eq!(known, [false, expected, expected], "{hot} of 150: whole, dense, touched");
    }
}

#[test]
fn dense_samples_from_before_a_block_became_hot_are_taken_again_for_all() {
    let mut machine = Machine { turns_hot: Some((8 * BLOCK, 2)), ..Machine::default() };
    machine.accessed.extend([(8 * BLOCK, 4), (9 * BLOCK, 10)]);
    let slow = [block(7, 8, true), block(7, 9, true)];
    let (_, tracker) = run_with(DENSE, machine, 600, &[], &slow);
    assert_eq!(tracker.watches, [(2, 0), (1, 0), (2, 0), (2, 0), (2, 0)]);
}

#[test]
fn dense_samples_that_contradict_the_others_count() {
    let mut machine = Machine::default();
    // The program stood still at two of the first samples.
    for number in [1, 8] {
        machine.accessed.insert(number * BLOCK, 8);
    }
    machine.accessed.extend([(2 * BLOCK, 8), (9 * BLOCK, 8)]);
    machine.dense.extend([(BLOCK, 29), (8 * BLOCK, 29), (2 * BLOCK, 6), (9 * BLOCK, 6)]);
    let (sampled, slow) = ([block(7, 1, true), block(7, 2, true)], [block(8, 8, true), block(8, 9, true)]);
    let (round, _) = run_with(DENSE, machine, 10_000, &sampled, &slow);
    let samples = |rated: &[BlockRate]| rated.iter().map(|rated| rated.samples).collect::<Vec<_>>();
    assert_eq!(samples(&round.sampled), [bits(30, 29), bits(10, 8)]);
    assert_eq!(samples(&round.slow), [bits(30, 29), bits(30, 24)]);
}

#[test]
fn without_a_shorter_interval_there_are_no_dense_samples() {
    for closest in [Duration::from_millis(501), Duration::from_secs(2)] {
        let mut machine = Machine::default();
        saturated(&mut machine, 1, &[(0, 10)]);
        let (round, tracker) = run_with(closest, machine, 10_000, &[block(7, 1, true)], &[]);
        assert_eq!((tracker.watches, round.measurable), (vec![(1, 0), (0, 512), (1, 0)], rate::resolvable(30, SECOND_US)));
    }
}
