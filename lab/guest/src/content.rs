//! Generated content for memory and stored values. Every page is different: zeroes or a repeated value would overstate
//! the benefit of far memory.

use fastrand::Rng;

/// Words for names and notes. Their number, with the fixed field names, determines how well records compress.
const WORDS: [&str; 96] = [
    "amber", "anchor", "april", "arrow", "autumn", "basin", "beacon", "birch", "border", "bridge", "bronze", "cabin", "canyon", "carbon",
    "castle", "cedar", "central", "chapel", "circle", "cliff", "cloud", "coast", "cobalt", "copper", "coral", "corner", "cotton",
    "crystal", "current", "delta", "desert", "distant", "early", "eastern", "ember", "falcon", "field", "forest", "garden", "glacier",
    "golden", "granite", "harbour", "harvest", "hidden", "hollow", "island", "ivory", "jasper", "juniper", "lantern", "lemon", "linden",
    "little", "lower", "maple", "marble", "market", "meadow", "middle", "mirror", "morning", "mountain", "narrow", "northern", "ocean",
    "olive", "orchard", "outer", "pebble", "pepper", "pine", "plain", "prairie", "quarry", "quiet", "raven", "ridge", "river", "saffron",
    "sandy", "shadow", "silver", "southern", "spring", "stone", "summer", "sunset", "timber", "upper", "valley", "velvet", "western",
    "willow", "winter", "yellow",
];
/// Values of enumerated fields.
const STATES: [&str; 4] = ["active", "pending", "archived", "suspended"];

/// Kinds of content, by how well they compress.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub(crate) enum Content {
    /// Records as stored by services: LZ4 compresses their pages to a third
    Text,
    /// A model's weights, quantised to bytes: no repetition; an entropy coder saves a quarter
    Weights,
    /// Random bytes, like encrypted or compressed data: incompressible
    Random,
}

impl Content {
    /// Appends `length` bytes of this content to `out`. Equal seeds of `rng` and equal ids give equal bytes.
    pub(crate) fn write(self, out: &mut Vec<u8>, length: usize, id: u64, rng: &mut Rng) {
        match self {
            Self::Text => write_records(out, length, id, rng),
            Self::Weights => out.extend(std::iter::repeat_with(|| weight(rng)).take(length)),
            Self::Random => {
                let start = out.len();
                out.resize(start + length, 0);
                rng.fill(&mut out[start..]);
            }
        }
    }
}

/// Returns a normally distributed weight, approximated by the sum of three uniform numbers. A standard deviation of 16
/// steps gives an entropy of six bits in eight, which is the ratio of 1.3:1 for byte-encoded weights (TMO section 4.1).
fn weight(rng: &mut Rng) -> u8 {
    let bits = rng.u64(..).to_le_bytes();
    bits[..3].iter().fold(0x80 - 47, |sum: u8, byte| sum.wrapping_add(byte & 31))
}

/// Returns a generator seeded with all of `parts`, in order.
pub(crate) fn seeded(parts: &[u64]) -> Rng {
    let mut rng = Rng::with_seed(0);
    for &part in parts {
        rng = Rng::with_seed(rng.u64(..) ^ part);
        // One step distributes neighbouring values over the whole range.
        rng.u64(..);
    }
    rng
}

/// Appends records of `length` bytes in total; the last one is truncated. Each record begins with `id`, so that two
/// texts of at least 30 bytes with different ids differ.
pub(crate) fn write_records(out: &mut Vec<u8>, length: usize, id: u64, rng: &mut Rng) {
    let end = out.len() + length;
    let mut number = 0;
    while out.len() < end {
        write_record(out, id, number, rng);
        number += 1;
    }
    out.truncate(end);
}

fn write_record(out: &mut Vec<u8>, id: u64, number: u64, rng: &mut Rng) {
    let mut word = || WORDS[rng.usize(..WORDS.len())].as_bytes();
    let (first, second) = (word(), word());
    out.extend_from_slice(b"{\"id\":");
    write_decimal(out, id);
    out.extend_from_slice(b",\"item\":");
    write_decimal(out, number);
    out.extend_from_slice(b",\"name\":\"");
    out.extend_from_slice(first);
    out.push(b' ');
    out.extend_from_slice(second);
    out.extend_from_slice(b"\",\"status\":\"");
    out.extend_from_slice(STATES[rng.usize(..STATES.len())].as_bytes());
    out.extend_from_slice(b"\",\"created_at\":");
    write_decimal(out, 1_600_000_000 + rng.u64(..100_000_000));
    out.extend_from_slice(b",\"balance_cents\":");
    write_decimal(out, rng.u64(..1_000_000));
    out.extend_from_slice(b",\"address\":{\"country\":\"");
    out.extend_from_slice(WORDS[rng.usize(..8)].as_bytes());
    out.extend_from_slice(b"\",\"postal_code\":\"");
    write_decimal(out, 10_000 + rng.u64(..90_000));
    out.extend_from_slice(b"\"},\"currency\":\"EUR\",\"channels\":[\"email\",\"mobile\"],\"notes\":\"");
    for _ in 0..rng.usize(1..5) {
        out.extend_from_slice(WORDS[rng.usize(..WORDS.len())].as_bytes());
        out.push(b' ');
    }
    out.extend_from_slice(b"\"},\n");
}

fn write_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10).to_le_bytes()[0];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the compression ratio of LZ4 on `text`, page by page as in zswap.
    fn ratio(text: &[u8]) -> f64 {
        let compressed: usize = text.chunks(4096).map(|page| lz4_flex::block::compress(page).len()).sum();
        text.len() as f64 / compressed as f64
    }

    fn check(lengths: impl Iterator<Item = usize>) {
        let mut text = Vec::new();
        for (id, length) in (1000..).zip(lengths) {
            let before = text.len();
            write_records(&mut text, length, id, &mut seeded(&[1, id]));
            assert_eq!(text.len() - before, length);
        }
        let ratio = ratio(&text);
        assert!((2.7..3.4).contains(&ratio), "compresses {ratio}:1");
    }

    #[test]
    fn records_compress_three_to_one() {
        check(std::iter::repeat_n(4096, 200));
        check((0..800).map(|i| 100 + i * 37 % 1900));
    }

    #[test]
    fn records_with_different_ids_differ() {
        let mut seen = std::collections::HashSet::new();
        for id in 0..5000 {
            // The same random numbers for each id.
            let mut text = Vec::new();
            write_records(&mut text, 100, id, &mut seeded(&[0]));
            assert!(seen.insert(text), "{id}");
        }
    }

    #[test]
    fn seeds_depend_on_every_part_and_its_position() {
        let mut seen = std::collections::HashSet::new();
        for parts in [&[0_u64][..], &[1], &[0, 0], &[0, 1], &[1, 0], &[2, 3], &[3, 2], &[1, 2, 3]] {
            assert!(seen.insert(seeded(parts).u64(..)), "{parts:?}");
        }
    }

    #[test]
    fn decimals() {
        for number in [0, 7, 10, 12_345, u64::MAX] {
            let mut text = Vec::new();
            write_decimal(&mut text, number);
            assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
    }
}
