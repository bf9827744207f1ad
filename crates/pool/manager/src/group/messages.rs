//! Messages from the other members. They are no part of the API for hosts and operators, whose certificates are refused here.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Group;
use super::origin::{Answer, Origin};
use super::types::Envelope;
use crate::api::{Code, ErrorResponse};

/// Longest message, in bytes: the entries of one message as JSON, or a part of a copy of the ledger.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Entries of the log, or none.
    Append,
    /// A request for a vote.
    Vote,
    /// A part of a copy of the ledger.
    Copy,
    /// Whether the member zeroes no slice and knows of a term.
    Idle,
    /// Which files the member has.
    Origin,
}

/// Finds the message of a path.
pub(crate) fn find(method: &str, path: &str) -> Option<Message> {
    let message = match path.strip_prefix("/v1/group/")? {
        "append" => Message::Append,
        "vote" => Message::Vote,
        "copy" => Message::Copy,
        "idle" => Message::Idle,
        "origin" => Message::Origin,
        _ => return None,
    };
    (method == "POST").then_some(message)
}

impl Group {
    /// Answers a message by another member.
    ///
    /// # Errors
    /// It is malformed, for another member, or asks for a vote that this member does not have.
    pub(crate) async fn answer(&self, message: Message, body: &[u8]) -> Result<Vec<u8>, ErrorResponse> {
        match message {
            Message::Append => {
                let (message, by): (openraft::raft::AppendEntriesRequest<super::Types>, _) = self.open(body)?;
                let committed = message.leader_commit.map(|id| id.index);
                let answer = self.raft.append_entries(message).await;
                self.joined(committed);
                Ok(self.with_origin(by, answer))
            }
            Message::Vote => {
                let (message, by) = self.open(body)?;
                if self.joining.load(std::sync::atomic::Ordering::Relaxed) {
                    return Err(refused(Code::Busy, "this member joins the group, and has no vote until it has all entries".to_owned()));
                }
                Ok(self.with_origin(by, self.raft.vote(message).await))
            }
            Message::Copy => {
                let (message, by) = self.open(body)?;
                Ok(self.with_origin(by, self.raft.install_snapshot(message).await))
            }
            Message::Idle => {
                let (term, _): (u64, _) = self.open(body)?;
                let knows = self.raft.metrics().borrow().current_term >= term;
                Ok(json(&(knows && self.scrubbing.try_lock().is_ok())))
            }
            Message::Origin => {
                let ((), _) = self.open(body)?;
                Ok(json(&self.log.origin()))
            }
        }
    }

    /// An answer, with the files of this member if the other one asks by a version that reads them.
    fn with_origin<T: Serialize>(&self, by: Option<Origin>, answer: T) -> Vec<u8> {
        match by.and(self.log.origin()) {
            Some(origin) => json(&Answer { origin, answer }),
            None => json(&answer),
        }
    }

    /// A message, and the files of the member that sends it.
    fn open<T: DeserializeOwned>(&self, body: &[u8]) -> Result<(T, Option<Origin>), ErrorResponse> {
        let invalid = |error| refused(Code::BadRequest, format!("invalid message of a member: {error}"));
        let Envelope { group, from, to, origin, message } = serde_json::from_slice(body).map_err(invalid)?;
        let own = u64::from(self.members.member);
        if to != own || !self.others().any(|other| other == from) {
            let message =
                format!("this is member {own} of {}, and got a message from member {from} to member {to}", self.members.members.len());
            return Err(refused(Code::Forbidden, message + "; compare the members in all configurations"));
        }
        let unusable = |error: super::log::Error| refused(Code::Ledger, error.to_string());
        let is_ours = group.map_or(Ok(false), |group| self.log.is_of(group)).map_err(unusable)?;
        if !is_ours {
            let message =
                format!("member {from} belongs to another group than member {own}: `pool manager recover` was run on one of them");
            return Err(refused(
                Code::Forbidden,
                message + " alone; run it on each, or `pool manager init --join` on the one that lacks entries",
            ));
        }
        if !origin.map_or(Ok(true), |origin| self.log.meets(from, origin)).map_err(unusable)? {
            let message = format!("member {from} was initialized again without --join, and member {own} does not hear it");
            return Err(refused(Code::Forbidden, message));
        }
        Ok((message, origin))
    }
}

fn refused(error: Code, message: String) -> ErrorResponse {
    ErrorResponse { error, message }
}

/// Serializes an answer; all of them can be JSON.
fn json<T: Serialize>(answer: &T) -> Vec<u8> {
    serde_json::to_vec(answer).unwrap_or_default()
}
