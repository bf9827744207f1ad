//! Pages of known content for tests, the same in every run.

/// Bytes of a page.
pub(super) const SIZE: usize = 4096;

/// Uniformly distributed bytes of a xorshift generator.
pub(super) fn noise(length: usize) -> Vec<u8> {
    let mut x = 1u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

/// Random words of a small vocabulary.
fn text() -> Vec<u8> {
    let words: Vec<_> = "the lake is warm above and cold below water sinks salmon swims there in winter".split_inclusive(' ').collect();
    noise(SIZE).iter().flat_map(|&byte| words[usize::from(byte) % words.len()].bytes()).take(SIZE).collect()
}

/// Addresses in a heap of 16 MiB, in multiples of 16 bytes, as in a node of a tree or a table of objects.
fn pointers() -> Vec<u8> {
    let noise = noise(3 * SIZE);
    let address = |bytes: &[u8]| 0x7f3a_5c00_0000u64 + (u64::from(bytes[0] & 0xf0) | u64::from(bytes[1]) << 8 | u64::from(bytes[2]) << 16);
    noise.chunks_exact(3).flat_map(|bytes| address(bytes).to_le_bytes()).take(SIZE).collect()
}

/// Eight-bit weights: the sum of twelve uniform numbers is close to a normal distribution, here with a standard
/// deviation of 7.
fn weights() -> Vec<u8> {
    noise(12 * SIZE)
        .chunks_exact(12)
        .map(|bytes| {
            let sum: i32 = bytes.iter().map(|&byte| i32::from(byte) - 128).sum();
            i8::try_from((sum / 36).clamp(-127, 127)).unwrap().cast_unsigned()
        })
        .collect()
}

/// All pages by name.
pub(super) fn all() -> [(&'static str, Vec<u8>); 6] {
    [
        ("zeros", vec![0; SIZE]),
        ("ones", vec![1; SIZE]),
        ("text", text()),
        ("pointers", pointers()),
        ("weights", weights()),
        ("noise", noise(SIZE)),
    ]
}
