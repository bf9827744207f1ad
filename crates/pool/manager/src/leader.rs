//! The writer of a member of a group: [`crate::writer`] with the group's log in place of the ledger's file. It serves only while this
//! member is the leader.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread;
use std::time::Instant;

use pool::Ns;

use crate::api::{Code, ErrorResponse};
use crate::audit::Audit;
use crate::group::{Change, Group, Rules, What};
use crate::ledger::Outcome;
use crate::settings::Settings;
use crate::writer::{BATCH_MAX, Handle, Pending, TRANSACTION_LIMIT, Wake};

struct Leader {
    group: Group,
    rules: Rules,
    /// The last term in which this member served.
    term: u64,
    /// When leases expire, by host, as of the last answer.
    until: Vec<Ns>,
    wake: SyncSender<Wake>,
    audit: Audit,
}

/// Starts the writer of a member. When the last handle is dropped, it ends.
pub(crate) fn start(
    group: &Group,
    settings: &Settings,
    clock: crate::writer::Clock,
    wake: SyncSender<Wake>,
    audit: Audit,
) -> std::io::Result<(Handle, thread::JoinHandle<()>)> {
    let (handle, waiting) = Handle::new(group.core().published().clone(), clock.clone(), Some(group.clone()));
    let metrics = Arc::clone(&handle.metrics);
    let rules = Rules::of(settings);
    let mut leader = Leader { group: group.clone(), rules, term: 0, until: Vec::new(), wake, audit };
    let run = move || run(&mut leader, &waiting, &clock, &metrics);
    let thread = thread::Builder::new().name("ledger".to_owned()).spawn(run)?;
    Ok((handle, thread))
}

fn run(leader: &mut Leader, waiting: &Receiver<Pending>, clock: &crate::writer::Clock, metrics: &crate::metrics::Metrics) {
    let member = daemon::watchdog::join("ledger", TRANSACTION_LIMIT);
    while let Ok(first) = waiting.recv() {
        let _busy = member.busy();
        let mut batch = vec![first];
        batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
        let begin = Instant::now();
        let now = clock.now();
        let (answers, is_written) = match leader.lead(now) {
            Ok(()) => leader.apply(now, &batch),
            Err(refused) => (vec![Err(refused); batch.len()], None),
        };
        match is_written {
            Some(true) => metrics.committed(batch.len(), begin.elapsed()),
            Some(false) => metrics.commit_failed(),
            None => {}
        }
        for (Pending { request, reply, .. }, answer) in batch.into_iter().zip(answers) {
            metrics.answered(&request, &answer);
            // The client may have disconnected.
            let _ = reply.send(answer);
        }
    }
}

impl Leader {
    /// Confirms that this member leads. At the begin of a term, all leases run a full term of their own: renewals by the leader before
    /// are not known.
    fn lead(&mut self, now: Ns) -> Result<(), ErrorResponse> {
        let term = self.group.wait_confirmed()?;
        if term == self.term {
            return Ok(());
        }
        self.impose_rules(now)?;
        let (ledger, _, last, _) = self.group.core().base();
        let (now, lease) = (now.max(last), self.rules.lease());
        self.until = ledger.leases_until().iter().map(|_| Ns(now.0.saturating_add(lease.0))).collect();
        self.term = term;
        Ok(())
    }

    /// Proposes the rules of this member's configuration, if the pool has others.
    fn impose_rules(&mut self, now: Ns) -> Result<(), ErrorResponse> {
        let (after, last) = {
            let mut core = self.group.core();
            if core.has_rules(&self.rules) {
                return Ok(());
            }
            let (_, after, last, _) = core.base();
            if let Err(error) = core.check_rules(&self.rules, now.max(last)) {
                log::error!("the configuration does not match the ledger, whose rules stay in effect: {error}");
                return Ok(());
            }
            (after, last)
        };
        self.group.propose(Change { after, now: now.max(last), what: What::Rules(self.rules.clone()) }).map(drop)
    }

    /// Applies a batch. Returns the answers, and whether an entry was written, if one had to be.
    fn apply(&mut self, now: Ns, batch: &[Pending]) -> (Vec<Outcome>, Option<bool>) {
        let (base, after, last, rows) = self.group.core().base();
        let now = now.max(last);
        let base = base.with_leases_until(&self.until);
        let mut next = base.clone();
        let mut answers: Vec<Outcome> = batch.iter().map(|pending| next.apply(now, &pending.request)).collect();
        let mut is_written = None;
        if next.differs(&base) {
            let accepted = batch.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            let requests = accepted.map(|(pending, _)| pending.request.limited()).collect();
            let what = What::Requests { until: self.until.clone(), rows, requests };
            let refused = match self.group.propose(Change { after, now, what }) {
                Ok(true) => None,
                Ok(false) => Some(Self::outdated()),
                Err(refused) => Some(refused),
            };
            is_written = Some(refused.is_none());
            if let Some(refused) = refused {
                answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| *answer = Err(refused.clone()));
                return (answers, is_written);
            }
        } else {
            self.group.core().remember(after, next.clone());
        }
        self.until = next.leases_until().to_vec();
        if next.to_scrub().next().is_some() {
            // If the channel is full, the scrubber wakes anyway.
            let _ = self.wake.try_send(Wake::Scrub);
        }
        // The leader writes what it decided. Refusals are not in the log, so that no other member could.
        let recorded = batch.iter().zip(&answers).map(|(pending, answer)| (pending.who.as_str(), &pending.request, answer));
        self.audit.record(now.0 / 1_000_000, recorded);
        (answers, is_written)
    }

    fn outdated() -> ErrorResponse {
        let message = "another entry of the group's log came first, and nothing has changed; repeat the request";
        ErrorResponse { error: Code::Busy, message: message.to_owned() }
    }
}
