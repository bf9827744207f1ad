//! A group of managers that share the ledger by a replicated log (Raft).
//!
//! # Problem
//! A manager alone is a single point of failure for devices that several machines reach: while its machine is down, no slice changes
//! its owner, and with its disk the ledger is lost.
//!
//! # Approach
//! Three or five members each have the whole ledger. One of them, the leader, serves ([`crate::leader`]): it applies requests to a copy,
//! as a manager alone does, and proposes those that change the ledger as one entry of the log. An entry has taken effect when a
//! majority has it on disk. Each member then applies it to its own ledger file ([`machine`]), in the order of the log.
//!
//! # Properties
//! - *Same answers.* An entry has all that the pure ledger needs: the leader's time, when each lease expires, and the requests. The
//!   rules of the pool are in the log, too, and not read from each member's configuration.
//! - *Same rows.* An entry has the hash of the rows that it was made for. A member with other rows stops.
//! - *One leader.* A leader confirms with a majority, once per batch, that it still is one, before it answers anything. An entry that
//!   was made for an earlier state of the ledger than it finds has no effect.
//! - *No second vote.* A member that lost its files has no vote before it has joined again ([`known`]).
//! - *Leases.* Renewals are not in the log. A new leader lets every lease run a full term, as a manager does after a restart.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use openraft::{BasicNode, Config, Raft, SnapshotPolicy};

use crate::api::{Code, ErrorResponse, GroupMember, GroupStatus};
use crate::connection::Identity;
use crate::settings::{Members, Settings};

mod known;
pub(crate) mod log;
pub(crate) mod machine;
mod messages;
mod network;
mod origin;
mod types;

pub(crate) use messages::{MESSAGE_MAX, Message, find};
pub(crate) use types::{Change, Rules, Types, What};

use log::Log;
use machine::{Core, Machine};
use network::Factory;

/// Interval of the leader's messages to each follower, in milliseconds. A follower must have an entry on disk within it.
const HEARTBEAT_MS: u64 = 150;
/// After this time without a leader, members begin an election.
const ELECTION_MS: std::ops::Range<u64> = 350..650;
/// Limit of a confirmation by a majority, and of an entry.
const MAJORITY_LIMIT: Duration = Duration::from_secs(3);
/// Entries between two copies of the ledger, after which earlier entries are removed.
const COPY_EVERY: u64 = 4096;
/// Bytes of a part of such a copy.
const PART_BYTES: u64 = 256 << 10;
/// Pause before a member whose files are not known is asked again.
const MEET_AGAIN: Duration = Duration::from_secs(1);
/// A member that joins takes no part in elections for this long, and until it has all that the leader has.
const JOIN_TIME: Duration = Duration::from_secs(10);

/// Why a member cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its log cannot be used.
    #[error(transparent)]
    Log(#[from] log::Error),
    /// Its ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] machine::Error),
    /// The certificates cannot be used.
    #[error("cannot use the certificates for the other members: {0}")]
    Identity(#[from] crate::connection::Error),
    /// The runtime cannot start.
    #[error("cannot start the threads of the group: {0}")]
    Runtime(#[from] std::io::Error),
    /// The library refuses.
    #[error("the group cannot start: {0}")]
    Library(String),
}

/// A member of a group. Clones are the same member.
#[derive(Clone)]
pub(crate) struct Group {
    raft: Raft<Types>,
    runtime: tokio::runtime::Handle,
    core: Arc<Mutex<Core>>,
    log: Log,
    members: Members,
    factory: Factory,
    began: Instant,
    /// It has no vote yet: what it had voted for is lost.
    joining: Arc<AtomicBool>,
    /// Held while this member zeroes a slice.
    scrubbing: Arc<Mutex<()>>,
    changes_of_leader: Arc<AtomicU64>,
    stopping: Arc<AtomicBool>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("member", &self.members.member).finish_non_exhaustive()
    }
}

/// The threads of a member, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    runtime: Option<tokio::runtime::Runtime>,
    group: Group,
}

impl Running {
    /// Leaves the group, and closes its files.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            self.group.stopping.store(true, Ordering::Relaxed);
            let _ = runtime.block_on(self.group.raft.shutdown());
            runtime.shutdown_timeout(Duration::from_secs(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a member.
///
/// # Errors
/// [`enum@Error`]
pub(crate) fn start(settings: &Settings, members: &Members, core: Core) -> Result<(Group, Running), Error> {
    let identity = settings.tls.as_ref().map(|tls| Identity { ca: tls.client_ca.clone(), cert: tls.cert.clone(), key: tls.key.clone() });
    let log = Log::open(&settings.group_log())?;
    let factory = Factory::new(members, identity.as_ref(), log.clone())?;
    log.check_follows(core.applied())?;
    let core = Arc::new(Mutex::new(core));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).max_blocking_threads(64).thread_name("group").enable_all().build()?;
    let joining = log.joining()?;
    let library = |error: &dyn std::fmt::Display| Error::Library(error.to_string());
    let config = Arc::new(config().validate().map_err(|error| library(&error))?);
    let is_new = log.is_empty()?;
    let raft = runtime.block_on(async {
        let member = u64::from(members.member);
        let machine = Machine::new(Arc::clone(&core));
        let raft = Raft::<Types>::new(member, config, factory.clone(), log.clone(), machine).await.map_err(|error| library(&error))?;
        raft.runtime_config().elect(!joining);
        // Only the member that has drawn the identity of the group begins it; the others get it by its messages.
        if is_new && !joining && log.group().is_some() {
            let all = (1..).zip(&members.members).map(|(member, url)| (member, BasicNode::new(url)));
            if let Err(error) = raft.initialize(all.collect::<std::collections::BTreeMap<u64, BasicNode>>()).await {
                ::log::info!("the group exists: {error}");
            }
        }
        Ok::<_, Error>(raft)
    })?;
    let group = Group {
        raft,
        runtime: runtime.handle().clone(),
        core,
        log,
        members: members.clone(),
        factory,
        began: Instant::now(),
        joining: Arc::new(AtomicBool::new(joining)),
        scrubbing: Arc::default(),
        changes_of_leader: Arc::default(),
        stopping: Arc::default(),
    };
    runtime.spawn(group.clone().watch());
    runtime.spawn(group.clone().meet());
    let running = Running { runtime: Some(runtime), group: group.clone() };
    Ok((group, running))
}

fn config() -> Config {
    Config {
        cluster_name: "thermocline-pool".to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.start,
        election_timeout_max: ELECTION_MS.end,
        install_snapshot_timeout: 10_000,
        max_payload_entries: 64,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(COPY_EVERY),
        max_in_snapshot_log_to_keep: COPY_EVERY / 4,
        snapshot_max_chunk_size: PART_BYTES,
        ..Config::default()
    }
}

impl Group {
    /// Confirms with a majority that this member is the leader, and has applied all that was committed before. Returns the term.
    pub(crate) async fn confirm(&self) -> Result<u64, ErrorResponse> {
        match tokio::time::timeout(MAJORITY_LIMIT, self.raft.ensure_linearizable()).await {
            Ok(Ok(Some(read))) => Ok(read.leader_id.term),
            _ => Err(self.refusal("is not the leader of its group")),
        }
    }

    /// [`Self::confirm`] from a thread of its own.
    pub(crate) fn wait_confirmed(&self) -> Result<u64, ErrorResponse> {
        self.runtime.block_on(self.confirm())
    }

    /// Proposes an entry, and waits until it has taken effect here. Returns whether it had an effect: it has none if it was made for an
    /// earlier state.
    pub(crate) fn propose(&self, change: Change) -> Result<bool, ErrorResponse> {
        let written = self.runtime.block_on(async { tokio::time::timeout(MAJORITY_LIMIT, self.raft.client_write(change)).await });
        match written {
            Ok(Ok(response)) => Ok(response.data.0),
            _ => Err(self.refusal("has lost its majority, and does not know whether the request was applied")),
        }
    }

    /// What a client is answered that must go to the leader.
    pub(crate) fn refusal(&self, why: &str) -> ErrorResponse {
        let leader = self.raft.metrics().borrow().current_leader.filter(|leader| *leader != u64::from(self.members.member));
        let member = self.members.member;
        let message = match leader.and_then(|leader| self.members.url(leader)) {
            Some(url) => format!("member {member} {why}; repeat the request at {url}"),
            None => format!("member {member} {why}; no leader is known; repeat the request at the other members"),
        };
        ErrorResponse { error: Code::NotLeader, message }
    }

    /// The rows, rules and position of this member.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while this member zeroes a slice.
    pub(crate) fn scrubbing(&self) -> MutexGuard<'_, ()> {
        self.scrubbing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = u64> {
        let own = u64::from(self.members.member);
        (1..=self.members.members.len() as u64).filter(move |member| *member != own)
    }

    /// The URLs of the members.
    pub(crate) fn urls(&self) -> &[String] {
        &self.members.members
    }

    /// Asks another member whether it zeroes no slice and knows of this term: then it begins with none as a leader of an earlier one.
    pub(crate) fn is_idle(&self, member: u64, term: u64) -> bool {
        self.factory.ask_idle(member, term)
    }

    /// Status for clients, without asking other members.
    pub(crate) fn status(&self) -> GroupStatus {
        let metrics = self.raft.metrics().borrow().clone();
        let last = metrics.last_log_index.unwrap_or_default();
        // Nothing is known of a member that has not answered this leader.
        let matched = |member: u64| metrics.replication.as_ref()?.get(&member)?.as_ref().map(|id| id.index);
        let members = (1..).zip(&self.members.members).map(|(member, url)| GroupMember {
            member,
            url: url.clone(),
            is_leader: metrics.current_leader == Some(member),
            lag_entries: if member == metrics.id { Some(0) } else { matched(member).map(|index| last.saturating_sub(index)) },
        });
        GroupStatus {
            member: metrics.id,
            leader: metrics.current_leader,
            term: metrics.current_term,
            last_entry: last,
            applied_entry: metrics.last_applied.map_or(0, |id| id.index),
            leader_changes: self.changes_of_leader.load(Ordering::Relaxed),
            joining: self.joining.load(Ordering::Relaxed),
            members: members.collect(),
        }
    }

    /// Counts and logs changes of the leader. Ends the process when this member cannot go on: without its disk it must not vote, and the
    /// service manager starts it again.
    async fn watch(self) {
        let mut metrics = self.raft.metrics();
        let mut leader = None;
        while metrics.changed().await.is_ok() {
            let (now, term, state) = {
                let metrics = metrics.borrow();
                (metrics.current_leader, metrics.current_term, metrics.running_state.clone())
            };
            if let Err(error) = state {
                self.exit(&error.to_string());
            }
            if now != leader {
                leader = now;
                if let Some(member) = now {
                    self.changes_of_leader.fetch_add(1, Ordering::Relaxed);
                    ::log::info!("member {member} of the group leads, in term {term}");
                }
            }
        }
        self.exit("its thread has ended; the cause is above");
    }

    /// Asks the other members for their files until all are known: followers send each other nothing before an election.
    async fn meet(self) {
        loop {
            let group = self.clone();
            let unknown = tokio::task::spawn_blocking(move || group.others().filter(|member| !group.has_met(*member)).count());
            if unknown.await.is_ok_and(|unknown| unknown == 0) {
                return;
            }
            tokio::time::sleep(MEET_AGAIN).await;
        }
    }

    /// Whether the files of a member are known, which is asked for them if not.
    fn has_met(&self, member: u64) -> bool {
        let met = self.log.has_met(member).and_then(|met| {
            if met { Ok(true) } else { self.factory.ask_origin(member).map_or(Ok(false), |origin| self.log.meets(member, origin)) }
        });
        met.unwrap_or_else(|error| {
            ::log::error!("{error}");
            false
        })
    }

    fn exit(&self, why: &str) {
        if !self.stopping.load(Ordering::Relaxed) {
            ::log::error!("this member of the group stops: {why}; the other members go on");
            std::process::exit(1);
        }
    }

    /// Ends the time in which a member that joins has no vote: it has all that the leader had committed, for long enough that no
    /// election goes on in which it voted before its files were lost.
    fn joined(&self, committed: Option<u64>) {
        let applied = self.raft.metrics().borrow().last_applied.map(|id| id.index);
        if self.joining.load(Ordering::Relaxed) && self.began.elapsed() > JOIN_TIME && committed.is_some() && applied >= committed {
            match self.log.set_joining(false) {
                Ok(()) => {
                    self.joining.store(false, Ordering::Relaxed);
                    self.raft.runtime_config().elect(true);
                    ::log::info!("this member has all entries of the group, and votes from now on");
                }
                Err(error) => ::log::error!("{error}"),
            }
        }
    }
}
