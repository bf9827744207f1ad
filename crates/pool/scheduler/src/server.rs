//! The scheduler's API over HTTP. Only operators use it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use daemon::http::{self, Answer, Bytes, Limits, Parts, Rejection, Server, Service};
use manager::tls::{Loopback, Peer, Tls};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{Code, Empty, Refusal};
use crate::metrics;
use crate::state::missing;
use crate::writer::{self, Command, Handle, Response};

const JSON: &str = "application/json";

const LIMITS: Limits = Limits {
    connections: 1024,
    handshakes: 256,
    handshake_timeout: Duration::from_secs(10),
    head_bytes: 16 << 10,
    body_bytes: 16 << 10,
    head_timeout: Duration::from_secs(60),
    request_timeout: Duration::from_secs(60),
    keep_alive: true,
};

/// Starts the server on `listener`; without `tls`, every client is trusted.
pub(crate) fn serve(
    listener: TcpListener,
    tls: Option<Arc<manager::tls::ServerConfig>>,
    handle: Handle,
    operators: Vec<String>,
) -> io::Result<Server> {
    let api = Api { handle, operators };
    match tls {
        Some(tls) => http::serve("http", listener, Tls::new(tls), api, LIMITS),
        None => http::serve("http", listener, Loopback, api, LIMITS),
    }
}

/// What a request asks for.
enum Operation {
    Place,
    List,
    Vm(String),
    End(String),
    Drain { host: String, drained: bool },
    Status,
    Metrics,
}

/// A request that its client may make, and the client's name.
struct Admitted {
    operation: Operation,
    who: String,
}

struct Api {
    handle: Handle,
    operators: Vec<String>,
}

impl Service<Peer> for Api {
    type Route = Admitted;

    fn route(&self, peer: &Peer, head: &Parts) -> Result<Admitted, Answer> {
        let operation = find(head.method.as_str(), head.uri.path()).map_err(|refused| refuse(&refused))?;
        let who = match peer {
            // A name that nothing has shown does not belong in the log.
            Peer::Trusted => Some("loopback".to_owned()),
            Peer::Certificate(_) => self.operators.iter().find(|name| peer.is(name)).cloned(),
        };
        let forbidden = || refuse(&refusal(Code::Forbidden, "this certificate is not for an operator; see operators in the configuration"));
        Ok(Admitted { operation, who: who.ok_or_else(forbidden)? })
    }

    async fn answer(&self, route: Admitted, _head: Parts, body: Bytes) -> Answer {
        match self.apply(route, &body).await {
            Ok(answer) => answer,
            Err(refused) => refuse(&refused),
        }
    }

    fn reject(&self, rejection: Rejection) -> Answer {
        let code = if matches!(rejection, Rejection::BodyTooLong(_)) { Code::TooLong } else { Code::BadRequest };
        refuse(&refusal(code, &rejection.to_string()))
    }
}

impl Api {
    async fn apply(&self, Admitted { operation, who }: Admitted, body: &[u8]) -> Result<Answer, Refusal> {
        let status = || {
            let published = self.handle.published();
            published.state.status(published.error)
        };
        let command = match operation {
            Operation::Place => Command::Place(parse(body)?),
            Operation::End(vm) => Command::End { vm },
            Operation::Drain { host, drained } => Command::Drain { host, drained },
            Operation::List => return Ok(json(200, &self.handle.published().state.list())),
            Operation::Vm(vm) => return Ok(json(200, &self.handle.published().state.vm(&vm)?)),
            Operation::Status => return Ok(json(200, &status())),
            Operation::Metrics => {
                let text = metrics::render(&status()).map_err(|error| refusal(Code::Busy, &error.to_string()))?;
                return Ok(Answer::new(200, daemon::metrics::OPENMETRICS, text));
            }
        };
        let outcome = self.handle.submit(&who, command)?.await.unwrap_or_else(|_| Err(writer::stopping()))?;
        Ok(match outcome {
            Response::Placed(placed) => json(200, &placed),
            Response::Host(host) => json(200, &host),
            Response::Done => json(200, &Empty {}),
        })
    }
}

/// Finds the operation of a request.
fn find(method: &str, path: &str) -> Result<Operation, Refusal> {
    let decoded: Option<Vec<String>> = path.split('/').skip(1).map(manager::connection::decode).collect();
    let decoded = decoded.ok_or_else(|| missing(path))?;
    let segments: Vec<&str> = decoded.iter().map(String::as_str).collect();
    let accepts = |methods: &str| Err(refusal(Code::MethodNotAllowed, &format!("{path} accepts {methods}, not {method}")));
    match (segments.as_slice(), method) {
        (["v1", "vms"], "POST") => Ok(Operation::Place),
        (["v1", "vms"], "GET") => Ok(Operation::List),
        (["v1", "vms"], _) => accepts("GET and POST"),
        (["v1", "vms", vm], "GET") => Ok(Operation::Vm((*vm).to_owned())),
        (["v1", "vms", vm], "DELETE") => Ok(Operation::End((*vm).to_owned())),
        (["v1", "vms", _], _) => accepts("GET and DELETE"),
        (["v1", "hosts", host, "drain"], "POST") => Ok(Operation::Drain { host: (*host).to_owned(), drained: true }),
        (["v1", "hosts", host, "restore"], "POST") => Ok(Operation::Drain { host: (*host).to_owned(), drained: false }),
        (["v1", "hosts", _, "drain" | "restore"], _) => accepts("POST"),
        (["v1", "status"], "GET") => Ok(Operation::Status),
        (["metrics"], "GET") => Ok(Operation::Metrics),
        (["v1", "status"] | ["metrics"], _) => accepts("GET"),
        _ => Err(missing(path)),
    }
}

fn refusal(error: Code, message: &str) -> Refusal {
    Refusal { error, message: message.to_owned() }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| refusal(Code::BadRequest, &format!("invalid request body: {error}")))
}

/// Serializes a message of the API; all of them can be JSON.
fn json<T: Serialize>(status: u16, message: &T) -> Answer {
    Answer::new(status, JSON, serde_json::to_vec(message).unwrap_or_default())
}

fn refuse(refused: &Refusal) -> Answer {
    json(refused.error.status(), refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_matched_to_operations() {
        let code = |method: &str, path: &str| find(method, path).map(drop).map_err(|refused| refused.error);
        assert!(matches!(find("DELETE", "/v1/vms/a%2Fb"), Ok(Operation::End(vm)) if vm == "a/b"));
        assert!(matches!(find("POST", "/v1/hosts/h/restore"), Ok(Operation::Drain { drained: false, .. })));
        assert_eq!(code("PUT", "/v1/vms"), Err(Code::MethodNotAllowed));
        for path in ["/", "/v1", "/v1/vms/a/b", "/v1/vms/%zz", "/v2/vms"] {
            assert_eq!(code("GET", path), Err(Code::NotFound), "{path}");
        }
    }
}
