//! Batch jobs, and programs that wait.

use super::builder::{Builder, PAGES_PER_MIB};

/// As the guest arena's program of the same name.
pub(super) fn phases(builder: &mut Builder) {
    let (hot, warm, never, phases) = (builder.anon(16, 35), builder.anon(24, 35), builder.anon(40, 33), builder.anon(24, 35));
    builder.access(0, hot.start..phases.end);
    builder.access(1, never);
    builder.poisson(warm, 0.02, 0.5);
    for at in 0..builder.intervals() {
        builder.access(at, hot.clone());
        if at / 40 % 2 == 0 {
            builder.access(at, phases.clone());
        }
    }
}

/// A serial generational collector: requests use a tenth of the sessions, the young generation is filled and emptied every 3 s, and
/// every 30 s all live objects are marked.
pub(super) fn collector(builder: &mut Builder) {
    let (code, young, sessions) = (builder.anon(24, 40), builder.anon(24, 25), builder.anon(88, 45));
    let waste = builder.anon(16, 30);
    builder.access(0, code.start..waste.end);
    let in_use = sessions.start..sessions.start + 9 * PAGES_PER_MIB;
    let part = (young.end - young.start) / 3;
    for at in 0..builder.intervals() {
        // Code, class data and stacks: a quarter of them at each second.
        let hot = code.start..code.start + 6 * PAGES_PER_MIB;
        builder.access(at, hot);
        let first = young.start + at % 3 * part;
        builder.access(at, first..first + part);
        for _ in 0..40 {
            let group = builder.random.u32(in_use.clone());
            builder.access(at, group..(group + 8).min(in_use.end));
        }
        if at % 30 == 29 {
            builder.access(at, sessions.clone());
        }
    }
}

/// A compiler, started over and over. Each process lives for 2 s with 10 MiB of its own; it reads some headers and one source, and
/// writes an output that nothing reads until the next link, 100 s later.
pub(super) fn build(builder: &mut Builder) {
    let (shell, processes) = (builder.anon(2, 40), builder.anon(20, 30));
    let (compiler, headers, sources, outputs) = (builder.file(16), builder.file(12), builder.file(8), builder.file(24));
    builder.access(0, headers.start..sources.end);
    let own = 10 * PAGES_PER_MIB;
    for at in 0..builder.intervals() {
        builder.access(at, shell.start..shell.start + 64);
        let process = processes.start + at / 2 % 2 * own;
        builder.access(at, process..process + own);
        // Two thirds of the compiler's pages are used by each process, the rest by few.
        builder.access(at, compiler.start..compiler.start + 10 * PAGES_PER_MIB);
        for _ in 0..30 {
            let header = builder.random.u32(0..(headers.end - headers.start) / 16);
            // Popular headers are included more often.
            let header = header * builder.random.u32(0..16) / 16;
            builder.access(at, headers.start + header * 16..headers.start + header * 16 + 16);
        }
        if at % 2 == 1 {
            builder.free(at, process..process + own);
            let source = sources.start + at / 2 * 8 % (sources.end - sources.start);
            builder.access(at, source..source + 8);
            let output = outputs.start + at / 2 * 24 % (outputs.end - outputs.start);
            builder.access(at, output..(output + 24).min(outputs.end));
        }
        if at % 100 == 99 {
            builder.access(at, outputs.clone());
        }
    }
}

/// Interpreters that were used for some seconds, one after another, and then run a timer; one request after 300 s.
pub(super) fn sandbox(builder: &mut Builder) {
    for number in 0..6 {
        let (heap, libraries) = (builder.anon(11, 38), builder.file(4));
        let begin = number * 5;
        for at in begin..begin + 25 {
            builder.access(at, heap.clone());
            builder.access(at, libraries.clone());
        }
        let timer = heap.start..heap.start + 40;
        for at in (begin + 25..builder.intervals()).filter(|at| at % 10 == number) {
            builder.access(at, timer.clone());
        }
        // A request needs a third of the heap and half of the libraries.
        builder.access(300 + number * 7, heap.start..heap.start + (heap.end - heap.start) / 3);
        builder.access(300 + number * 7, libraries.start..libraries.start + (libraries.end - libraries.start) / 2);
    }
}

/// Parts that are used at a period each.
pub(super) fn periodic(builder: &mut Builder) {
    for (number, period) in (0..).zip([1, 5, 10, 20, 40, 60, 80, 160, builder.intervals()]) {
        let part = builder.anon(8, 40);
        for at in (number..builder.intervals()).step_by(period as usize) {
            builder.access(at, part.clone());
        }
    }
}
