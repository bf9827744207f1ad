//! Carries out what the pressure controller decided: requests to `memory.reclaim`.

use policy::balance::{self, AnonFileBias};
use policy::pressure::Decision;
use units::{Bytes, Pages};

use super::Pressure;
use super::amount::Amount;
use super::record::Reclaimed;
use crate::actuators::lru;
use crate::context::Context;
use crate::job::Job;
use crate::reclaim::{charge, count, note_stored, reclaim};
use crate::swap_room::took_page_cache;

/// The largest surplus, in requests like the last.
const SURPLUS_MAX: u64 = 64;

impl Pressure {
    /// What a decision asks for, minus the surplus of earlier requests.
    pub(super) fn amount(&mut self, decision: &Decision, bias: AnonFileBias, balance: &balance::Input) -> Option<Amount> {
        let Decision::Reclaim { bytes } = *decision else { return None };
        let paid = self.surplus.0.min(bytes.0);
        self.surplus = self.surplus - Bytes(paid);
        let mut amount = Amount::of(bytes - Bytes(paid), bias, balance.anon, balance.file);
        if balance.file == Bytes::ZERO {
            amount.file = Bytes::ZERO;
        }
        Some(amount).filter(|amount| amount.total() > Bytes::ZERO)
    }

    /// One request. The kernel chooses the pages. Returns the pages that it was asked for.
    pub(super) fn reclaim_step(&mut self, job: &mut Job, context: &mut Context, limit: Pages, swap_limit: Pages) -> kernel::Result<Pages> {
        let page = kernel::page_size();
        let Some(amount) = self.plan.take() else { return Ok(Pages::ZERO) };
        let anon_first = amount.anon > Bytes::ZERO;
        let (asked, limit) = if anon_first { (amount.anon, swap_limit) } else { (amount.file, limit) };
        let asked = asked.min(limit.to_bytes(page));
        let before = count(job, context)?;
        reclaim(job, context, asked, if anon_first { AnonFileBias::Swappiness(lru::ANON_FIRST) } else { AnonFileBias::FileOnly })?;
        let after = count(job, context)?;
        let offloaded = (after.swapped - before.swapped).to_pages(page);
        charge(job, context, &before, &after);
        note_stored(job, &before, &after);
        let reclaimed = Reclaimed { asked, anon: before.anon - after.anon, file: before.file - after.file };
        context.trackers.swapped_out(job.tracker.0, job.cgroup.id(), offloaded);
        job.account_reclaim(offloaded, reclaimed.file);
        self.account(reclaimed);
        let left = match anon_first {
            true if took_page_cache(job, context, asked, &before, &after) => Amount { anon: Bytes::ZERO, ..amount },
            true => Amount { anon: amount.anon - asked, ..amount },
            false => Amount { file: amount.file - asked, ..amount },
        };
        self.plan = (left.total() > Bytes::ZERO).then_some(left);
        Ok(asked.to_pages(page))
    }

    /// Accounts what one request reclaimed.
    fn account(&mut self, reclaimed: Reclaimed) {
        self.outcome.asked += reclaimed.asked;
        self.outcome.anon += reclaimed.anon;
        self.outcome.file += reclaimed.file;
        let beyond = reclaimed.anon + reclaimed.file - reclaimed.asked;
        // Memory that the job itself freed meanwhile cannot be distinguished: the surplus is limited to a few periods' requests.
        self.surplus = (self.surplus + beyond).min(Bytes(reclaimed.asked.0.saturating_mul(SURPLUS_MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_divided_by_the_bias_and_the_sizes() {
        let check = |bias, anon, file, expected: (u64, u64)| {
            let amount = Amount::of(Bytes(1_000), bias, Bytes(anon), Bytes(file));
            assert_eq!((amount.anon.0, amount.file.0), expected, "{bias:?} {anon} {file}");
        };
        check(AnonFileBias::FileOnly, 500, 500, (0, 1_000));
        check(AnonFileBias::Swappiness(100), 500, 500, (500, 500));
        check(AnonFileBias::Swappiness(100), 900, 100, (900, 100));
        check(AnonFileBias::Swappiness(150), 500, 500, (750, 250));
        check(AnonFileBias::Swappiness(200), 1, u64::MAX, (1_000, 0));
        check(AnonFileBias::Swappiness(1), 0, 0, (0, 1_000));
    }
}
