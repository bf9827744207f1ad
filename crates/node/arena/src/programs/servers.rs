//! Servers, which answer requests at a fixed rate.

use super::builder::{Builder, PAGES_PER_MIB, Zipf};

/// Values of 1.2 KiB in the mean, of which three share a page; the hash table and the buffers are hot.
pub(super) fn zipf(builder: &mut Builder) {
    const KEYS: u32 = 50_000;
    let (server, values) = (builder.anon(8, 30), builder.anon(66, 55));
    builder.access(0, server.start..values.end);
    // A key's place is random: neighbours in rank are not neighbours in memory.
    let mut places: Vec<u32> = (0..KEYS).map(|key| values.start + key % (values.end - values.start)).collect();
    builder.random.shuffle(&mut places);
    let ranks = Zipf::new(KEYS, 0.99);
    for at in 0..builder.intervals() {
        builder.access(at, server.start..server.start + 3 * PAGES_PER_MIB);
        for _ in 0..300 {
            let rank = ranks.draw(&mut builder.random);
            let table = builder.random.u32(server.start..server.end);
            builder.access(at, [places[rank as usize], table]);
        }
    }
}

/// Rows of 1 KB, three to a page, read by rank of a Pareto law whose first rank moves on by 20 rows a second; and the index.
pub(super) fn drift(builder: &mut Builder) {
    const ROWS: u32 = 36_000;
    let (interpreter, rows, index) = (builder.anon(10, 40), builder.file(47), builder.file(1));
    builder.access(0, interpreter.start..index.end);
    for at in 0..builder.intervals() {
        builder.access(at, interpreter.start..interpreter.start + 2 * PAGES_PER_MIB);
        for _ in 0..60 {
            let uniform = 1.0 - builder.random.f64();
            let rank = 20.0 * (libm::pow(uniform, -1.0 / 0.9) - 1.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limited to the rows")]
            let rank = rank.min(1e9) as u32;
            let row = (rank % ROWS + at * 20) % ROWS;
            builder.access(at, [rows.start + row / 3]);
            let leaf = index.start + row / 150 % (index.end - index.start);
            builder.access(at, [leaf]);
        }
    }
}

/// A query each 50 s reads a table of 48 MiB once, in 12 s, into a hash table that it frees; a dimension table is read by each second
/// query; shared buffers are used at random.
pub(super) fn scan(builder: &mut Builder) {
    let (server, buffers, hash) = (builder.anon(8, 40), builder.anon(24, 50), builder.anon(16, 45));
    let (table, dimension) = (builder.file(48), builder.file(12));
    builder.access(0, server.start..buffers.end);
    builder.poisson(buffers, 0.005, 0.3);
    let (per_second, hash_per_second) = ((table.end - table.start) / 12, (hash.end - hash.start) / 12);
    for at in 0..builder.intervals() {
        builder.access(at, server.start..server.start + PAGES_PER_MIB);
        let (query, second) = (at / 50, at % 50);
        if second < 12 {
            let first = table.start + second * per_second;
            builder.access(at, first..first + per_second);
            // What the query has built is probed at random while it grows.
            let built = hash.start + (second + 1) * hash_per_second;
            builder.access(at, built - hash_per_second..built);
            for _ in 0..600 {
                let probe = builder.random.u32(hash.start..built);
                builder.access(at, [probe]);
            }
        }
        if second == 12 {
            builder.free(at, hash.clone());
            if query % 2 == 0 {
                builder.access(at, dimension.clone());
            }
        }
    }
}

/// A model's layers, and experts that few requests use. Quantised weights do not shrink (TMO section 4.1).
pub(super) fn weights(builder: &mut Builder) {
    let (server, layers, experts) = (builder.anon(4, 40), builder.anon(24, 110), builder.anon(48, 110));
    builder.access(0, server.start..experts.end);
    builder.poisson(experts, 0.01, 0.1);
    for at in 0..builder.intervals() {
        builder.access(at, server.clone());
        if at % 2 == 0 {
            builder.access(at, layers.clone());
        }
    }
}
