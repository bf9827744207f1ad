//! Packs rows of small numbers into few bits.
//!
//! A matrix of `u32` is cut into tiles of 32 rows by 8 columns. A row is stored as its difference from the previous
//! row, with the sign in the lowest bit (0, -1, 1, -2, ... become 0, 1, 2, 3, ...). Each tile uses as many bits per
//! number as its largest number needs. The result is small because the numbers of a job change little between
//! consecutive entries and neighbouring buckets are of similar size. It is fast because the eight columns are the lanes
//! of one vector register.
//!
//! ```text
//! the first row, 4 bytes per column        base of the first differences
//! tile, by rows, then by columns:
//!   bits per number, 0 to 32               1 byte
//!   256 numbers                            32 bytes per bit
//! ```

use bitpacking::{BitPacker, BitPacker8x};
use multiversion::multiversion;

/// Columns of a tile. The number of columns of a matrix is a multiple of it.
pub(crate) const LANES: usize = 8;
const ROWS: usize = 32;
const TILE: usize = ROWS * LANES;

/// Packs `matrix`, rows of `stride` numbers each, and appends the bytes to `packed`.
pub(crate) fn pack(matrix: &[u32], stride: usize, packed: &mut Vec<u8>) {
    let Some(first) = matrix.get(..stride) else { return };
    // Numbers rarely take more than half of their bits.
    packed.reserve(matrix.len() * 2 + stride * 4);
    packed.extend(first.iter().flat_map(|number| number.to_le_bytes()));
    let packer = BitPacker8x::new();
    let mut before = first;
    let (mut tile, mut bytes) = ([0; TILE], [0; TILE * 4]);
    for rows in matrix.chunks(ROWS * stride) {
        // Missing rows of the last tile are stored as differences of zero.
        tile[rows.len() / stride * LANES..].fill(0);
        for group in (0..stride).step_by(LANES) {
            subtract(rows, stride, group, &before[group..], &mut tile);
            let bits = packer.num_bits(&tile);
            packed.push(bits);
            let size = packer.compress(&tile, &mut bytes, bits);
            packed.extend_from_slice(&bytes[..size]);
        }
        before = &rows[rows.len() - stride..];
    }
}

/// Writes the differences of a tile, each row from the one before it, in the columns from `group` on.
#[multiversion(targets("x86_64+avx2"))]
fn subtract(rows: &[u32], stride: usize, group: usize, before: &[u32], tile: &mut [u32; TILE]) {
    let Some(mut before) = before.first_chunk::<LANES>() else { return };
    let (tile, _) = tile.as_chunks_mut::<LANES>();
    for (row, differences) in rows.chunks_exact(stride).zip(tile) {
        let Some(now) = row.get(group..).and_then(|row| row.first_chunk::<LANES>()) else { return };
        *differences = std::array::from_fn(|lane| fold(now[lane].wrapping_sub(before[lane])));
        before = now;
    }
}

/// Unpacks `rows` rows of `stride` numbers, the first `columns` of which are appended to `front`, row by row. `rest` is replaced by
/// rows of all columns of the tiles that are not entirely among those. Returns `None` if `packed` is not the result of
/// [`pack`] for a matrix of this size; `front` is then as before.
pub(crate) fn unpack(
    packed: &[u8],
    (stride, columns): (usize, usize),
    rows: usize,
    front: &mut Vec<u32>,
    rest: &mut Vec<u32>,
) -> Option<()> {
    let tiles = rows.div_ceil(ROWS);
    // A tile takes at least one byte: a larger claim is rejected before memory is allocated for it.
    if stride == 0 || !stride.is_multiple_of(LANES) || columns > stride || tiles.checked_mul(stride / LANES)? > packed.len() {
        return None;
    }
    let (begin, whole) = (front.len(), columns / LANES * LANES);
    front.resize(begin + rows * columns, 0);
    rest.resize(rows * (stride - whole), 0);
    let both =
        [Columns { first: 0, width: columns, cells: &mut front[begin..] }, Columns { first: whole, width: stride - whole, cells: rest }];
    let done = unpack_tiles(packed, stride, rows, both);
    if done.is_none() {
        front.truncate(begin);
        return None;
    }
    let (shared, cells) = (columns - whole, rest.chunks_exact((stride - whole).max(1)));
    for (row, rest) in front[begin..].chunks_exact_mut(columns.max(1)).zip(cells) {
        row[whole..].iter_mut().zip(&rest[..shared]).for_each(|(cell, &number)| *cell = number);
    }
    Some(())
}

/// Columns of unpacked rows, from one on.
struct Columns<'a> {
    first: usize,
    width: usize,
    cells: &'a mut [u32],
}

/// Unpacks tiles into the first or the last columns.
fn unpack_tiles(packed: &[u8], stride: usize, rows: usize, [mut front, mut rest]: [Columns<'_>; 2]) -> Option<()> {
    let (first, mut packed) = packed.split_at_checked(stride * 4)?;
    let (first, _) = first.as_chunks::<4>();
    let packer = BitPacker8x::new();
    let mut tile = [0; TILE];
    for row in (0..rows).step_by(ROWS) {
        for group in (0..stride).step_by(LANES) {
            let (&bits, after) = packed.split_first()?;
            if bits > 32 {
                return None;
            }
            let (bytes, after) = after.split_at_checked(TILE / 8 * usize::from(bits))?;
            packer.decompress(bytes, &mut tile, bits);
            let Columns { first: begin, width, cells } = if group < rest.first { &mut front } else { &mut rest };
            let column = group - *begin;
            let before = match row.checked_sub(1) {
                None => std::array::from_fn(|lane| u32::from_le_bytes(first[group + lane])),
                Some(before) => *cells[before * *width + column..].first_chunk()?,
            };
            let (differences, _) = tile.as_chunks::<LANES>();
            add_up(differences, before, &mut cells[row * *width..], (*width, column));
            packed = after;
        }
    }
    packed.is_empty().then_some(())
}

/// Adds the differences of a tile to the row before it, in some columns of the rows `cells`.
#[multiversion(targets("x86_64+avx2"))]
fn add_up(differences: &[[u32; LANES]], mut row: [u32; LANES], cells: &mut [u32], (width, column): (usize, usize)) {
    for (cells, difference) in cells.chunks_exact_mut(width).zip(differences) {
        for (number, &difference) in row.iter_mut().zip(difference) {
            *number = number.wrapping_add(unfold(difference));
        }
        cells[column..column + LANES].copy_from_slice(&row);
    }
}

/// Moves the sign into the lowest bit, so that differences of small magnitude become small numbers.
fn fold(difference: u32) -> u32 {
    (difference << 1) ^ (difference >> 31).wrapping_neg()
}

fn unfold(folded: u32) -> u32 {
    (folded >> 1) ^ (folded & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn check(rows: usize, stride: usize, number: impl FnMut() -> u32) -> Vec<u8> {
        let matrix: Vec<u32> = std::iter::repeat_with(number).take(rows * stride).collect();
        let mut packed = Vec::new();
        pack(&matrix, stride, &mut packed);
        if rows > 0 {
            for columns in [0, 3, LANES, stride - 1, stride] {
                let (mut front, mut rest) = (vec![7; 3], vec![7; 3]);
                assert_eq!(unpack(&packed, (stride, columns), rows, &mut front, &mut rest), Some(()), "{rows} {stride}");
                let of = |columns: Range<usize>| matrix.chunks(stride).flat_map(|row| row[columns.clone()].to_vec()).collect::<Vec<_>>();
                assert!(front[3..] == of(0..columns) && front[..3] == [7; 3], "{rows} {stride} {columns}");
                assert!(rest == of(columns / LANES * LANES..stride), "{rows} {stride} {columns}");
            }
        }
        packed
    }

    #[test]
    fn unpacking_restores_the_packed_matrix() {
        let mut random = fastrand::Rng::with_seed(3);
        for rows in [0, 1, 2, 31, 32, 33, 64, 288] {
            for stride in [8, 80] {
                for bits in [0, 1, 7, 20, 31] {
                    check(rows, stride, || random.u32(..1 << bits));
                }
                check(rows, stride, || random.u32(..));
            }
        }
        check(40, 8, || if random.bool() { u32::MAX } else { 0 });
        assert_eq!(check(288, 80, || 5).len(), 320 + 9 * 10, "constant numbers take one byte per tile");
    }

    #[test]
    fn differences_fold_by_their_magnitude() {
        for (difference, folded) in [(0, 0), (-1, 1), (1, 2), (-2, 3), (i32::MIN, u32::MAX), (i32::MAX, u32::MAX - 1)] {
            assert_eq!((fold(difference.cast_unsigned()), unfold(folded)), (folded, difference.cast_unsigned()));
        }
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let mut random = fastrand::Rng::with_seed(3);
        let packed = check(40, 16, || random.u32(..1 << 9));
        let (mut front, mut rest) = (vec![7], Vec::new());
        let mut rejected = |packed: &[u8], shape, rows| {
            let unpacked = unpack(packed, shape, rows, &mut front, &mut rest);
            assert!(unpacked.is_none() && front == [7], "{shape:?} {rows}");
        };
        (0..packed.len()).for_each(|cut| rejected(&packed[..cut], (16, 9), 40));
        for (shape, rows) in [((16, 9), 70), ((16, 9), usize::MAX), ((15, 9), 40), ((16, 17), 40), ((0, 0), 40)] {
            rejected(&packed, shape, rows);
        }
        for at in 0..packed.len() {
            let mut changed = packed.clone();
            changed[at] ^= 0xff;
            // The result may be anything but a panic.
            let _ = unpack(&changed, (16, 9), 40, &mut front, &mut rest);
        }
    }
}
