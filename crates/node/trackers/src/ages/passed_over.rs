//! Page frames whose offload is in vain until their pages are accessed: a bit each.

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

    /// Removes the frames of a scan whose pages are not old: accessed since, new, or of no watched job. `first` is the first of
    /// `frames`, a multiple of 64.
    pub(super) fn scanned<T>(&mut self, first: usize, frames: &[T], is_old: impl Fn(&T) -> bool) {
        for (word, frames) in self.0.iter_mut().skip(first / BITS).zip(frames.chunks(BITS)) {
            if *word != 0 {
                *word &= frames.iter().enumerate().filter(|(_, frame)| is_old(frame)).fold(0, |old, (bit, _)| old | 1 << bit);
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

        let old = |young: &[usize], frames: std::ops::Range<usize>| frames.map(|frame| !young.contains(&frame)).collect::<Vec<_>>();
        passed_over.scanned(64, &old(&[65, 66], 64..130), |&old| old);
        assert_eq!(has(&passed_over), [0, 63, 64, 129]);
        passed_over.scanned(0, &old(&[0, 129], 0..130), |&old| old);
        assert_eq!(has(&passed_over), [63, 64]);
    }
}
