//! The pool manager's API over HTTP: identities of clients, their permissions, and what is answered.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use daemon::http::{self, Answer, Limits, Rejection, Server, Service};
use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde::Serialize;

use crate::api::{Code, Empty, ErrorResponse, PoolStatus};
use crate::group::{self, Group, Message};
use crate::ledger;
use crate::openapi;
use crate::routes::{self, Access, Match, Operation};
use crate::settings::host_of;
use crate::tls::{Loopback, Peer, Tls};
use crate::writer::{self, Handle};

const JSON: &str = "application/json";

/// Hosts keep their connections between renewals of their leases: up to 1,024 hosts, while they reconnect, and operators.
const LIMITS: Limits = Limits {
    connections: 3072,
    handshakes: 1024,
    handshake_timeout: Duration::from_secs(10),
    head_bytes: 64 << 10,
    body_bytes: 64 << 10,
    head_timeout: Duration::from_secs(60),
    request_timeout: Duration::from_secs(60),
    keep_alive: true,
};

/// The names of clients by role.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    /// The names of operators.
    pub operators: Vec<String>,
    /// The names of hosts.
    pub hosts: Vec<String>,
}

/// Starts the server on `listener`; without `tls`, every client is trusted.
pub(crate) fn serve(listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, handle: Handle, rights: Rights) -> io::Result<Server> {
    let api = Api { handle, rights, description: openapi::describe().to_string() };
    match tls {
        Some(tls) => http::serve("http", listener, Tls::new(tls), api, LIMITS),
        None => http::serve("http", listener, Loopback, api, LIMITS),
    }
}

/// A request that its client may make, and who that is.
enum Admitted {
    /// By a host or an operator.
    Client { found: Match, who: String },
    /// By another member of the group.
    Member(Group, Message),
}

struct Api {
    handle: Handle,
    rights: Rights,
    description: String,
}

impl Service<Peer> for Api {
    type Route = Admitted;

    fn route(&self, peer: &Peer, head: &Parts) -> Result<Admitted, Answer> {
        let path = head.uri.path();
        if let Some((group, message)) = self.handle.group.as_ref().zip(group::find(head.method.as_str(), path)) {
            if group.urls().iter().filter_map(|url| host_of(url)).any(|name| peer.is(name)) {
                return Ok(Admitted::Member(group.clone(), message));
            }
            let message = "this certificate is not for a member of the group; see members in the configuration".to_owned();
            return Err(refuse(&ErrorResponse { error: Code::Forbidden, message }));
        }
        let found = routes::find(head.method.as_str(), path).map_err(|refused| refuse(&refused))?;
        let who = authorize(peer, &self.rights, &found).map_err(|refused| refuse(&refused))?;
        Ok(Admitted::Client { found, who })
    }

    fn body_bytes(&self, route: &Admitted) -> Option<usize> {
        matches!(route, Admitted::Member(..)).then_some(group::MESSAGE_MAX)
    }

    async fn answer(&self, route: Admitted, head: Parts, body: Bytes) -> Answer {
        let answer = match &route {
            Admitted::Client { found, who } => self.apply(found, who, &head, &body).await,
            Admitted::Member(group, message) => group.answer(*message, &body).await.map(|body| Answer::new(200, JSON, body)),
        };
        answer.unwrap_or_else(|refused| refuse(&refused))
    }

    fn reject(&self, rejection: Rejection) -> Answer {
        let error = if matches!(rejection, Rejection::BodyTooLong(_)) { Code::TooLong } else { Code::BadRequest };
        refuse(&ErrorResponse { error, message: rejection.to_string() })
    }
}

impl Api {
    async fn apply(&self, route: &Match, who: &str, head: &Parts, body: &[u8]) -> Result<Answer, ErrorResponse> {
        let Some(request) = route.request(head.uri.query().unwrap_or(""), body)? else {
            return self.read(route.route.operation).await;
        };
        let outcome = self.handle.submit_as(who, request)?.await.unwrap_or_else(|_| Err(writer::stopping()))?;
        Ok(match outcome {
            ledger::Response::Lease(answer) => json(200, &answer),
            ledger::Response::Renewed(answer) => json(200, &answer),
            ledger::Response::Assignment(answer) => json(200, &answer),
            ledger::Response::WorkList(answer) => json(200, &answer),
            ledger::Response::Done => json(200, &Empty {}),
        })
    }

    /// Answers from the published state, without waiting for the writer.
    async fn read(&self, operation: Operation) -> Result<Answer, ErrorResponse> {
        if let (Some(group), Operation::Slices | Operation::Permissions) = (&self.handle.group, operation) {
            group.confirm().await?;
        }
        let published = self.handle.published();
        let status = || PoolStatus {
            group: self.handle.group.as_ref().map(Group::status),
            ..published.ledger.status(self.handle.clock.now(), published.error.clone())
        };
        Ok(match operation {
            Operation::Slices => json(200, &published.ledger.slice_list()),
            Operation::Permissions => json(200, &published.ledger.permissions()),
            Operation::Description => Answer::new(200, JSON, self.description.clone()),
            Operation::Metrics => {
                let text = self.handle.metrics.render(&status());
                let text = text.map_err(|error| ErrorResponse { error: Code::Busy, message: error.to_string() })?;
                Answer::new(200, daemon::metrics::OPENMETRICS, text)
            }
            _ => json(200, &status()),
        })
    }
}

/// Checks that a client may use a route. Returns the name by which it may.
fn authorize(peer: &Peer, rights: &Rights, found: &Match) -> Result<String, ErrorResponse> {
    let any = |names: &[&Vec<String>]| names.iter().flat_map(|names| names.iter()).find(|name| peer.is(name)).cloned();
    let (allowed, message) = match found.route.access {
        Access::Host => {
            let host = found.parameter("host");
            (peer.is(host).then(|| host.to_owned()), format!("this certificate is not for {host}; a host acts only for itself"))
        }
        Access::Operator => {
            (any(&[&rights.operators]), "this certificate is not for an operator; see operators in the configuration".to_owned())
        }
        Access::Any => {
            (any(&[&rights.hosts, &rights.operators]), "this certificate is not for a host or an operator of this pool".to_owned())
        }
    };
    allowed.ok_or(ErrorResponse { error: Code::Forbidden, message })
}

/// Serializes a message of the API; all of them can be JSON.
fn json<T: Serialize>(status: u16, message: &T) -> Answer {
    Answer::new(status, JSON, serde_json::to_vec(message).unwrap_or_default())
}

fn refuse(refused: &ErrorResponse) -> Answer {
    json(refused.error.status(), refused)
}
