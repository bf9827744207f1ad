//! LZO1X, as the kernel's default compressors `lzo` and `lzo-rle` use it.
//!
//! The stream is described in the kernel's `Documentation/staging/lzo.rst`. The LZO libraries at hand are under the GPL,
//! or search longer than the kernel does and so promise too much (by a tenth on machine code). The search here is the
//! kernel's fast one (LZO1X-1): one candidate per hash of four bytes, taken when it matches. Run lengths of zeros, which
//! `lzo-rle` adds, are left out: they save time rather than space.

/// The kernel's hash table: 2^13 positions.
const TABLE_BITS: u32 = 13;

/// The kernel looks for matches of at least four bytes.
const MATCH_MIN: usize = 4;

/// The kernel leaves the last bytes of a page as they are.
const TAIL: usize = 20;

/// The largest distance that a stream can hold.
const DISTANCE_MAX: usize = 0xbfff;

/// Appends `data` to `packed` as an LZO1X stream.
pub(super) fn compress(data: &[u8], packed: &mut Vec<u8>) {
    let start = packed.len();
    let mut positions = [0u16; 1 << TABLE_BITS];
    let (mut literals, mut at) = (0, MATCH_MIN);
    let end = data.len().saturating_sub(TAIL);
    while at < end {
        let slot = &mut positions[hash(&data[at..])];
        let candidate = usize::from(*slot);
        // Past 64 KiB a position does not fit; what is found instead is compared like any other candidate.
        *slot = u16::try_from(at).unwrap_or(u16::MAX);
        let length = matching(data, candidate, at, end);
        if length < MATCH_MIN {
            // What has not matched for long is not likely to match soon.
            at += 1 + (at - literals) / 32;
            continue;
        }
        write_literals(&data[literals..at], start, packed);
        write_match(length, at - candidate, packed);
        at += length;
        literals = at;
    }
    write_literals(&data[literals..], start, packed);
    packed.extend([17, 0, 0]);
}

/// The slot of the first four bytes.
fn hash(data: &[u8]) -> usize {
    let word = data.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    // Multiplicative hashing by 2^32 over the golden ratio: the top bits are the well mixed ones.
    (word.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize
}

/// How many bytes from `at` to `end` are those from `candidate` on; none where the stream could not say so.
fn matching(data: &[u8], candidate: usize, at: usize, end: usize) -> usize {
    if candidate >= at || at - candidate > DISTANCE_MAX {
        return 0;
    }
    data[at..end].iter().zip(&data[candidate..]).take_while(|(a, b)| a == b).count()
}

/// The low eight bits.
fn low(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

/// A value from 1 to `max` in the instruction byte itself; a larger one as zero, with the excess in bytes behind it, of
/// which every leading zero stands for 255.
fn write_counted(instruction: u8, value: usize, max: usize, packed: &mut Vec<u8>) {
    if value <= max {
        packed.push(instruction | low(value));
        return;
    }
    packed.push(instruction);
    let mut rest = value - max;
    while rest > 255 {
        packed.push(0);
        rest -= 255;
    }
    packed.push(low(rest));
}

fn write_literals(run: &[u8], start: usize, packed: &mut Vec<u8>) {
    let length = run.len();
    if packed.len() == start && (1..=238).contains(&length) {
        packed.push(low(17 + length));
    } else if (1..=3).contains(&length) {
        // Two bits of the match before are kept for this; they lie in the last byte but one.
        let before = packed.len() - 2;
        packed[before] |= low(length);
    } else if length > 3 {
        write_counted(0, length - 3, 15, packed);
    }
    packed.extend_from_slice(run);
}

fn write_match(length: usize, distance: usize, packed: &mut Vec<u8>) {
    if length <= 8 && distance <= 0x800 {
        let distance = distance - 1;
        packed.extend([low((length - 1) << 5 | (distance & 7) << 2), low(distance >> 3)]);
        return;
    }
    let distance = if distance <= 0x4000 {
        write_counted(32, length - 2, 31, packed);
        distance - 1
    } else {
        let distance = distance - 0x4000;
        write_counted(16 | low((distance & 0x4000) >> 11), length - 2, 7, packed);
        distance & 0x3fff
    };
    packed.extend([low(distance << 2), low(distance >> 6)]);
}

/// Appends to `data` what [`compress`] made a stream of. `None` for anything else, such as the matches of two and three
/// bytes that only slower compressors write.
pub(super) fn decompress(packed: &[u8], data: &mut Vec<u8>) -> Option<()> {
    let start = data.len();
    let mut input = packed;
    if let Some((&first @ 18.., rest)) = packed.split_first() {
        input = rest;
        data.extend_from_slice(take(&mut input, usize::from(first) - 17)?);
    }
    loop {
        let byte = usize::from(take(&mut input, 1)?[0]);
        let (length, distance, literals) = match byte {
            0..16 => {
                let length = 3 + counted(&mut input, byte, 15)?;
                data.extend_from_slice(take(&mut input, length)?);
                continue;
            }
            16..32 => {
                let length = 2 + counted(&mut input, byte & 7, 7)?;
                let (distance, literals) = distance(&mut input)?;
                let distance = distance + ((byte & 8) << 11);
                if distance == 0 {
                    return input.is_empty().then_some(());
                }
                (length, distance + 0x4000, literals)
            }
            32..64 => {
                let length = 2 + counted(&mut input, byte & 31, 31)?;
                let (distance, literals) = distance(&mut input)?;
                (length, distance + 1, literals)
            }
            _ => {
                let high = usize::from(take(&mut input, 1)?[0]);
                ((byte >> 5) + 1, (high << 3) + ((byte >> 2) & 7) + 1, byte & 3)
            }
        };
        repeat(data, start, length, distance)?;
        data.extend_from_slice(take(&mut input, literals)?);
    }
}

fn take<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(taken)
}

/// The inverse of [`write_counted`].
fn counted(input: &mut &[u8], value: usize, max: usize) -> Option<usize> {
    if value > 0 {
        return Some(value);
    }
    let mut total = max;
    loop {
        match take(input, 1)?[0] {
            0 => total += 255,
            last => return Some(total + usize::from(last)),
        }
    }
}

/// Fourteen bits of distance and two of literals that follow the match.
fn distance(input: &mut &[u8]) -> Option<(usize, usize)> {
    let pair = take(input, 2)?.first_chunk().map(|bytes| usize::from(u16::from_le_bytes(*bytes)))?;
    Some((pair >> 2, pair & 3))
}

/// Appends `length` bytes that begin `distance` before the end. They may reach into themselves: then they repeat.
fn repeat(data: &mut Vec<u8>, start: usize, length: usize, distance: usize) -> Option<()> {
    let from = data.len().checked_sub(distance).filter(|&from| from >= start)?;
    let mut left = length;
    while left > 0 {
        let step = left.min(data.len() - from);
        data.extend_from_within(from..from + step);
        left -= step;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::pages;
    use super::*;

    fn check(name: &str, data: &[u8]) {
        let (mut packed, mut back) = (vec![], vec![]);
        compress(data, &mut packed);
        assert_eq!(decompress(&packed, &mut back), Some(()), "{name}: {} bytes", data.len());
        assert!(back == data, "{name}: {} bytes come back changed", data.len());
        // A stream cut short is noticed wherever it is cut.
        for cut in (0..packed.len()).step_by(1 + packed.len() / 64) {
            assert_eq!(decompress(&packed[..cut], &mut vec![]), None, "{name}: cut at {cut} of {}", packed.len());
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for (name, page) in pages::all() {
            for length in [0, 1, 3, 4, 19, 20, 21, 24, 25, 238, 239, 300, 4096] {
                check(name, &page[..length]);
            }
        }
    }

    #[test]
    fn every_form_of_a_match_is_understood() {
        // On either side of where a distance or a length takes another form.
        let noise = pages::noise(DISTANCE_MAX);
        for distance in [1, 7, 2048, 2049, 16_384, 16_385, 32_767, 32_768, DISTANCE_MAX] {
            for length in [4, 8, 9, 10, 33, 34, 288, 289, 600] {
                let mut data = noise[..distance].to_vec();
                (0..length).for_each(|_| data.push(data[data.len() - distance]));
                data.extend([1, 2, 3]);
                let (mut packed, mut back) = (vec![], vec![]);
                write_literals(&noise[..distance], 0, &mut packed);
                write_match(length, distance, &mut packed);
                write_literals(&[1, 2, 3], 0, &mut packed);
                packed.extend([17, 0, 0]);
                assert_eq!(decompress(&packed, &mut back), Some(()), "{length} bytes from {distance} before");
                assert!(back == data, "{length} bytes from {distance} before");
            }
        }
    }

    #[test]
    fn streams_that_make_no_sense_are_refused() {
        // A distance before the start, a stream that goes on after its end, an endless count.
        for packed in [&[18, 7, 64, 9][..], &[18, 7, 17, 0, 0, 0], &[0; 9], &[]] {
            assert_eq!(decompress(packed, &mut vec![1, 2, 3]), None, "{packed:?}");
        }
    }
}
