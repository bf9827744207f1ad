//! The console's HTTP service: the page's files, and JSON below `/api/`. It only reads.
//!
//! # Protection
//! - The header `Host` must be an IP address, `localhost` or a name that the operator gave: a page from elsewhere whose name was
//!   rebound to this address sends its own name.
//! - Beyond loopback, everything below `/api/` needs the token. The page's files hold no data and need none.
//! - No request changes anything: only GET and HEAD are answered, and no body is read.

use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use daemon::http::{Answer, Bytes, Limits, Parts, Rejection, Service};

use super::assets::{self, Asset};
use super::data::{Data, Found};

/// Limits of the server. A browser opens some connections and keeps them.
pub(crate) const LIMITS: Limits = Limits {
    connections: 64,
    handshakes: 64,
    handshake_timeout: Duration::from_secs(5),
    head_bytes: 16 << 10,
    body_bytes: 0,
    head_timeout: Duration::from_secs(30),
    request_timeout: Duration::from_secs(10),
    keep_alive: true,
};

/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 32 << 20;

const JSON: &str = "application/json";

/// Headers of every answer.
const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    // What a machine runs does not belong in a browser's cache.
    ("cache-control", "no-store"),
];

/// Who may ask.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// Required below `/api/`; `None` only on loopback.
    pub(crate) token: Option<String>,
    /// Names by which the console is reached, in lower case.
    pub(crate) hosts: Vec<String>,
}

impl Access {
    /// Whether a header `Host` names this console.
    fn knows_host(&self, host: &str) -> bool {
        let name = name_of(host).to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map_or_else(
            || name.parse::<std::net::Ipv4Addr>().ok().map(IpAddr::V4),
            |inner| inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        );
        address.is_some() || name == "localhost" || self.hosts.contains(&name)
    }

    /// Whether a header `Authorization` has the token. The time does not depend on where they differ.
    fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(token) = self.token.as_ref().map(String::as_bytes) else { return true };
        let Some(given) = authorization.and_then(|given| given.strip_prefix(b"Bearer ")) else { return false };
        given.len() == token.len() && given.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// A header `Host` without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The service.
pub(crate) struct Console {
    pub(crate) data: Arc<Data>,
    pub(crate) access: Access,
}

/// What a request asks for.
pub(crate) enum Route {
    Asset(&'static Asset),
    /// Below `/api/`.
    Api(String),
}

fn refusal(status: u16, problem: &str) -> Answer {
    Answer::new(status, JSON, serde_json::json!({ "error": problem }).to_string()).with_headers(HEADERS)
}

impl Service<()> for Console {
    type Route = Route;

    fn route(&self, _peer: &(), head: &Parts) -> Result<Route, Answer> {
        if !matches!(head.method.as_str(), "GET" | "HEAD") {
            return Err(refusal(405, "the console is read-only; use GET"));
        }
        let host = head.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !self.access.knows_host(host) {
            return Err(refusal(421, "this console has another name; use its IP address, or start it with --host and this name"));
        }
        let path = head.uri.path();
        if let Some(asset) = assets::find(path) {
            return Ok(Route::Asset(asset));
        }
        let Some(below) = path.strip_prefix("/api/") else { return Err(refusal(404, "no such page; the console is at /")) };
        if !self.access.admits(head.headers.get("authorization").map(|value| value.as_bytes())) {
            return Err(refusal(
                401,
                "a token is needed: the content of the file that --token-file names, as `Authorization: Bearer TOKEN`",
            ));
        }
        Ok(Route::Api(below.to_owned()))
    }

    fn answer(&self, route: Route, _head: Parts, _body: Bytes) -> impl Future<Output = Answer> + Send {
        let answer = match route {
            Route::Asset(asset) => Answer::new(200, asset.content_type, asset.bytes),
            Route::Api(path) => match self.data.find(&path) {
                Found::Json(json) if json.len() <= ANSWER_BYTES_MAX => Answer::new(200, JSON, json),
                Found::Json(_) => refusal(500, "the answer exceeds 32 MiB; name fewer traces or journals"),
                Found::NotReady(state) => Answer::new(503, JSON, state.to_string()),
                Found::Unknown => refusal(404, "there is no such view, cluster or job"),
            },
        };
        std::future::ready(answer.with_headers(HEADERS))
    }

    fn reject(&self, rejection: Rejection) -> Answer {
        refusal(rejection.status(), &rejection.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebound_name_is_not_this_console() {
        let access = Access { hosts: vec!["console.example".to_owned()], ..Access::default() };
        for host in
            ["127.0.0.1:7480", "127.0.0.1", "[::1]:7480", "[::1]", "localhost:7480", "LOCALHOST", "10.1.2.3:80", "Console.Example:7480"]
        {
            assert!(access.knows_host(host), "{host}");
        }
        for host in [
            "",
            ":7480",
            "evil.example",
            "evil.example:7480",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "::1",
            "[evil]",
            "[127.0.0.1]",
        ] {
            assert!(!access.knows_host(host), "{host}");
        }
    }

    #[test]
    fn only_the_whole_token_is_admitted() {
        let access = Access { token: Some("0123456789abcdef".to_owned()), ..Access::default() };
        assert!(access.admits(Some(b"Bearer 0123456789abcdef")));
        for given in [
            &b""[..],
            b"Bearer ",
            b"Bearer 0123456789abcdeF",
            b"Bearer 0123456789abcde",
            b"Bearer 0123456789abcdef0",
            b"Basic 0123456789abcdef",
        ] {
            assert!(!access.admits(Some(given)), "{given:?}");
        }
        assert!(!access.admits(None));
        assert!(Access::default().admits(None));
    }
}
