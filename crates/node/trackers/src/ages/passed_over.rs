//! Page frames whose offload is in vain until their pages are accessed: a bit each.

use super::page_idle::FrameAge;

const BITS: usize = u64::BITS as usize;

/// A set of page frames. It takes memory from the first frame on: 32 MiB per TiB.
#[derive(Debug, Default)]
pub(super) struct PassedOver(Vec<u64>);

impl PassedOver {
    /// Adds a frame of a machine that has `frames`.
    pub(super) fn add(&mut self, frame: u64, frames: usize) {
        let Some(at) = usize::try_from(frame).ok().filter(|&at| at < frames) else { return };
        self.0.resize(frames.div_ceil(BITS), 0);
        self.0[at / BITS] |= 1 << (at % BITS);
    }

    /// Whether it has a frame.
    pub(super) fn has(&self, frame: u64) -> bool {
        let at = usize::try_from(frame).unwrap_or(usize::MAX);
        self.0.get(at / BITS).is_some_and(|word| word >> (at % BITS) & 1 == 1)
    }

    /// Removes frames whose pages a scan found accessed, new, or of no watched job: their age is zero. `first` is the frame of the
    /// first age, a multiple of 64.
    pub(super) fn scanned(&mut self, first: usize, ages: &[FrameAge]) {
        for (word, ages) in self.0.iter_mut().skip(first / BITS).zip(ages.chunks(BITS)) {
            if *word != 0 {
                *word &= ages.iter().enumerate().filter(|(_, frame)| frame.age > 0).fold(0, |old, (bit, _)| old | 1 << bit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_stay_until_their_pages_are_young() {
        let mut passed_over = PassedOver::default();
        assert!(!passed_over.has(0) && !passed_over.has(u64::MAX));
        let frames = 130;
        for frame in [0, 63, 64, 65, 129, 130, u64::MAX] {
            passed_over.add(frame, frames);
        }
        let has = |passed_over: &PassedOver| (0..200).filter(|&frame| passed_over.has(frame)).collect::<Vec<_>>();
        assert_eq!(has(&passed_over), [0, 63, 64, 65, 129]);

        let ages = |young: &[usize], frames: std::ops::Range<usize>| {
            frames.map(|frame| FrameAge { age: u8::from(!young.contains(&frame)) * 9, tag: 1 }).collect::<Vec<_>>()
        };
        passed_over.scanned(64, &ages(&[65, 66], 64..130));
        assert_eq!(has(&passed_over), [0, 63, 64, 129]);
        passed_over.scanned(0, &ages(&[0, 129], 0..130));
        assert_eq!(has(&passed_over), [63, 64]);
    }
}
