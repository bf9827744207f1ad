//! Messages to the other members.

use std::sync::Arc;
use std::time::Duration;

use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest, VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::log::Log;
use super::origin::{AnyAnswer, Origin};
use super::types::{Envelope, Types};
use crate::api::ErrorResponse;
use crate::connection::{Connection, Error, Identity, Method};
use crate::settings::Members;

/// Limit of a message.
const MESSAGE_LIMIT: Duration = Duration::from_secs(1);
/// Limit of a part of a copy of the ledger.
const COPY_LIMIT: Duration = Duration::from_secs(10);
/// Pause before a member that did not answer is sent to again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Connections to all members.
#[derive(Clone, Debug)]
pub(crate) struct Factory {
    from: u64,
    log: Log,
    /// By member: for messages, and for copies.
    connections: Arc<[(Connection, Connection)]>,
}

impl Factory {
    /// Connections to the members of a group.
    ///
    /// # Errors
    /// A URL or a certificate cannot be used.
    pub(crate) fn new(members: &Members, identity: Option<&Identity>, log: Log) -> Result<Self, Error> {
        let identity = |url: &str| identity.filter(|_| url.starts_with("https://"));
        let connect = |url: &String, limit| Connection::new("member of the group", url, identity(url), limit);
        let connections = members.members.iter().map(|url| Ok((connect(url, MESSAGE_LIMIT)?, connect(url, COPY_LIMIT)?)));
        Ok(Self { from: u64::from(members.member), log, connections: connections.collect::<Result<_, Error>>()? })
    }

    fn to(&self, to: u64) -> Option<&(Connection, Connection)> {
        self.connections.get(usize::try_from(to).ok()?.checked_sub(1)?)
    }

    /// Asks a member whether it zeroes no slice and knows of this term.
    pub(crate) fn ask_idle(&self, to: u64, term: u64) -> bool {
        self.ask(to, "/v1/group/idle", term) == Some(true)
    }

    /// Asks a member for its files; `None` if it does not answer.
    pub(crate) fn ask_origin(&self, to: u64) -> Option<Origin> {
        self.ask(to, "/v1/group/origin", ())
    }

    fn ask<T: DeserializeOwned>(&self, to: u64, path: &str, message: impl Serialize) -> Option<T> {
        let envelope = Envelope { group: self.log.group(), from: self.from, to, origin: self.log.origin(), message };
        self.to(to)?.0.send::<T, ErrorResponse>(Method::POST, path, Some(&envelope)).ok()?.ok()
    }
}

impl RaftNetworkFactory<Types> for Factory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Network {
        Network { from: self.from, log: self.log.clone(), to: target, connections: self.to(target).cloned() }
    }
}

/// The connection to one member.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    from: u64,
    log: Log,
    to: u64,
    connections: Option<(Connection, Connection)>,
}

type Sent<T, E = openraft::error::Infallible> = Result<T, RPCError<u64, BasicNode, RaftError<u64, E>>>;

impl Network {
    async fn send<M, T, E>(&self, path: &'static str, is_copy: bool, message: M) -> Sent<T, E>
    where
        M: Serialize + Send + 'static,
        T: DeserializeOwned + Send + 'static,
        E: std::error::Error + DeserializeOwned + Send + 'static,
    {
        let unreachable = |error: String| RPCError::Unreachable(Unreachable::new(&std::io::Error::other(error)));
        let (messages, copies) = self.connections.clone().ok_or_else(|| unreachable(format!("there is no member {}", self.to)))?;
        let connection = if is_copy { copies } else { messages };
        let envelope = Envelope { group: self.log.group(), from: self.from, to: self.to, origin: self.log.origin(), message };
        let send = move || connection.send::<AnyAnswer<Result<T, RaftError<u64, E>>>, ErrorResponse>(Method::POST, path, Some(&envelope));
        let sent = tokio::task::spawn_blocking(send).await.map_err(|error| unreachable(error.to_string()))?;
        let answer = match sent.map_err(|error| unreachable(error.to_string()))? {
            Ok(AnyAnswer::Former(answer)) => answer,
            Ok(AnyAnswer::Known(known)) => {
                let is_heard = self.log.meets(self.to, known.origin).map_err(|error| unreachable(error.to_string()))?;
                if !is_heard {
                    return Err(unreachable(format!("member {} has other files than before", self.to)));
                }
                known.answer
            }
            Err(refused) => return Err(unreachable(refused.message)),
        };
        answer.map_err(|error| RPCError::RemoteError(openraft::error::RemoteError::new(self.to, error)))
    }
}

impl RaftNetwork<Types> for Network {
    async fn append_entries(&mut self, message: AppendEntriesRequest<Types>, _: RPCOption) -> Sent<AppendEntriesResponse<u64>> {
        self.send("/v1/group/append", false, message).await
    }

    async fn install_snapshot(
        &mut self,
        message: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Sent<InstallSnapshotResponse<u64>, InstallSnapshotError> {
        self.send("/v1/group/copy", true, message).await
    }

    async fn vote(&mut self, message: VoteRequest<u64>, _: RPCOption) -> Sent<VoteResponse<u64>> {
        self.send("/v1/group/vote", false, message).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN_AFTER))
    }
}
