//! The pool manager's API over HTTP: identities of clients, their permissions, and what is answered.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use daemon::http::{self, Accept, Answer, Limits, Rejection, Server, Service};
use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::api::{Code, Done, Refused};
use crate::book;
use crate::openapi;
use crate::routes::{self, Match, Operation, Who};
use crate::tls::Peer;
use crate::writer::{self, Handle};

const JSON: &str = "application/json";

/// Hosts keep their connections between renewals of their leases.
const LIMITS: Limits = Limits {
    connections: 512,
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
        Some(tls) => http::serve("http", listener, Tls(TlsAcceptor::from(tls)), api, LIMITS),
        None => http::serve("http", listener, Loopback, api, LIMITS),
    }
}

/// TLS with a certificate of the client.
struct Tls(TlsAcceptor);

impl Accept for Tls {
    type Stream = TlsStream<TcpStream>;
    type Peer = Peer;

    async fn accept(&self, stream: TcpStream) -> io::Result<(Self::Stream, Peer)> {
        let stream = self.0.accept(stream).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
        let certificate = certificate.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, "no client certificate"))?;
        Ok((stream, Peer::Certified(certificate.into_owned())))
    }
}

/// Plain TCP on the loopback interface.
struct Loopback;

impl Accept for Loopback {
    type Stream = TcpStream;
    type Peer = Peer;

    async fn accept(&self, stream: TcpStream) -> io::Result<(TcpStream, Peer)> {
        Ok((stream, Peer::Trusted))
    }
}

struct Api {
    handle: Handle,
    rights: Rights,
    description: String,
}

impl Service<Peer> for Api {
    type Route = Match;

    fn route(&self, peer: &Peer, head: &Parts) -> Result<Match, Answer> {
        let found = routes::find(head.method.as_str(), head.uri.path()).map_err(|refused| refuse(&refused))?;
        may(peer, &self.rights, &found).map_err(|refused| refuse(&refused))?;
        Ok(found)
    }

    async fn answer(&self, route: Match, head: Parts, body: Bytes) -> Answer {
        match self.follow(&route, &head, &body).await {
            Ok(answer) => answer,
            Err(refused) => refuse(&refused),
        }
    }

    fn reject(&self, rejection: Rejection) -> Answer {
        let error = if matches!(rejection, Rejection::BodyTooLong(_)) { Code::TooLong } else { Code::BadRequest };
        refuse(&Refused { error, message: rejection.to_string() })
    }
}

impl Api {
    async fn follow(&self, route: &Match, head: &Parts, body: &[u8]) -> Result<Answer, Refused> {
        let Some(ask) = route.ask(head.uri.query().unwrap_or(""), body)? else {
            return self.read(route.route.operation);
        };
        let followed = self.handle.submit(ask)?.await.unwrap_or_else(|_| Err(writer::stopping()))?;
        Ok(match followed {
            book::Answer::Lease(answer) => json(200, &answer),
            book::Answer::Renewed(answer) => json(200, &answer),
            book::Answer::Assignment(answer) => json(200, &answer),
            book::Answer::WorkList(answer) => json(200, &answer),
            book::Answer::Done => json(200, &Done {}),
        })
    }

    /// Answers from the published state, without waiting for the writer.
    fn read(&self, operation: Operation) -> Result<Answer, Refused> {
        let published = self.handle.published();
        let status = || published.book.status(self.handle.clock.now(), published.trouble.clone());
        Ok(match operation {
            Operation::Slices => json(200, &published.book.slice_list()),
            Operation::Permissions => json(200, &published.book.permissions()),
            Operation::Description => Answer::new(200, JSON, self.description.clone()),
            Operation::Metrics => {
                let text = self.handle.metrics.render(&status());
                let text = text.map_err(|error| Refused { error: Code::Busy, message: error.to_string() })?;
                Answer::new(200, daemon::metrics::OPENMETRICS, text)
            }
            _ => json(200, &status()),
        })
    }
}

/// Refuses whoever asks what is not his.
fn may(peer: &Peer, rights: &Rights, found: &Match) -> Result<(), Refused> {
    let (allowed, message) = match found.route.who {
        Who::Host => {
            let host = found.parameter("host");
            (peer.is(host), format!("this certificate is not {host}'s; a host speaks for itself alone"))
        }
        Who::Operator => (
            rights.operators.iter().any(|name| peer.is(name)),
            "this certificate is no operator's; see operators in the configuration".to_owned(),
        ),
        Who::Anybody => {
            let mut known = rights.hosts.iter().chain(&rights.operators);
            (known.any(|name| peer.is(name)), "this certificate is no host's and no operator's of this pool".to_owned())
        }
    };
    if allowed { Ok(()) } else { Err(Refused { error: Code::Forbidden, message }) }
}

/// Serializes a message of the API; all of them can be JSON.
fn json<T: Serialize>(status: u16, message: &T) -> Answer {
    Answer::new(status, JSON, serde_json::to_vec(message).unwrap_or_default())
}

fn refuse(refused: &Refused) -> Answer {
    json(refused.error.status(), refused)
}
