//! LZO1X, as used by the kernel's default compressors `lzo` and `lzo-rle`.
//!
//! The kernel's `Documentation/staging/lzo.rst` describes the stream. Existing LZO libraries are licensed under the
//! GPL, or search longer than the kernel and overestimate the saving (by a tenth on machine code). The search here is
//! the kernel's fast one (LZO1X-1): one candidate per hash of four bytes, used if it matches. Run lengths of zeros,
//! which `lzo-rle` adds, are omitted: they save time, not space.

/// Size of the kernel's hash table: 2^13 positions.
const TABLE_BITS: u32 = 13;

/// The kernel searches for matches of at least four bytes.
const MATCH_MIN: usize = 4;

/// The kernel stores the last bytes of a page as literals.
const TAIL: usize = 20;

/// Largest distance that a stream can encode.
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
        // A position above 64 KiB does not fit; the wrong candidate found instead is compared like any other.
        *slot = u16::try_from(at).unwrap_or(u16::MAX);
        let length = matching(data, candidate, at, end);
        if length < MATCH_MIN {
            // The longer there was no match, the less likely is one soon.
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

/// Hash table slot of the first four bytes.
fn hash(data: &[u8]) -> usize {
    let word = data.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    // Multiplicative hashing by 2^32 divided by the golden ratio: the top bits are well mixed.
    (word.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize
}

/// Returns the number of bytes from `at` to `end` that equal those from `candidate` on; 0 if the stream cannot encode
/// the distance.
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

/// Writes a value from 1 to `max` into the instruction byte; a larger one as 0, followed by bytes for the excess, of
/// which every leading zero byte stands for 255.
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
        // Two bits in the last but one byte of the preceding match are reserved for this.
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

/// Appends the decompressed stream to `data`. `None` if [`compress`] cannot have written the stream, for instance
/// because of matches of two or three bytes, which only slower compressors write.
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

/// Reads fourteen bits of distance, and two bits for the number of literals that follow the match.
fn distance(input: &mut &[u8]) -> Option<(usize, usize)> {
    let pair = take(input, 2)?.first_chunk().map(|bytes| usize::from(u16::from_le_bytes(*bytes)))?;
    Some((pair >> 2, pair & 3))
}

/// Appends `length` bytes that begin `distance` before the end. If they overlap with themselves, they repeat.
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
        assert!(back == data, "{name}: {} bytes are decompressed to other content", data.len());
        // A truncated stream is refused, wherever it is truncated.
        for cut in (0..packed.len()).step_by(1 + packed.len() / 64) {
            assert_eq!(decompress(&packed[..cut], &mut vec![]), None, "{name}: cut at {cut} of {}", packed.len());
        }
    }

    #[test]
    fn decompressed_content_equals_the_original() {
        for (name, page) in pages::all() {
            for length in [0, 1, 3, 4, 19, 20, 21, 24, 25, 238, 239, 300, 4096] {
                check(name, &page[..length]);
            }
        }
    }

    #[test]
    fn every_encoding_of_a_match_is_decoded() {
        // On both sides of the limits at which the encoding of distance or length changes.
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
                assert_eq!(decompress(&packed, &mut back), Some(()), "{length} bytes at distance {distance}");
                assert!(back == data, "{length} bytes at distance {distance}");
            }
        }
    }

    #[test]
    fn invalid_streams_are_refused() {
        // A distance beyond the start, bytes after the end of the stream, an unterminated count.
        for packed in [&[18, 7, 64, 9][..], &[18, 7, 17, 0, 0, 0], &[0; 9], &[]] {
            assert_eq!(decompress(packed, &mut vec![1, 2, 3]), None, "{packed:?}");
        }
    }
}
