//! HTTP/1.1: connections, limits, and who may ask what.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::api::{Code, Done, Refused};
use crate::book::Answer;
use crate::openapi;
use crate::routes::{self, Match, Operation, Who};
use crate::tls::Peer;
use crate::writer::{self, Handle};

/// Connections at once; more wait.
const CONNECTIONS_MAX: usize = 512;
/// How long a request's body may be.
const BODY_MAX: usize = 64 << 10;
/// How long a handshake, the head of a request, or its body may take; also how long a connection may say nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long open requests may take when the end has begun.
const GRACE: Duration = Duration::from_secs(5);
/// How long nobody is let in after the kernel could not.
const RETRY_WAIT: Duration = Duration::from_millis(100);

/// Who may ask what.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    /// The names of operators.
    pub operators: Vec<String>,
    /// The names of hosts.
    pub hosts: Vec<String>,
}

struct Shared {
    handle: Handle,
    rights: Rights,
    description: String,
    tls: Option<TlsAcceptor>,
}

/// Serves until `stop` changes.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    handle: Handle,
    rights: Rights,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let description = openapi::describe().to_string();
    let shared = Arc::new(Shared { handle, rights, description, tls: tls.map(TlsAcceptor::from) });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let (shared, stop) = (Arc::clone(&shared), stop.clone());
                tokio::spawn(async move {
                    welcome(stream, from, shared, stop).await;
                    drop(place);
                });
            }
            // Out of descriptors: trying again at once would keep a core busy.
            Err(error) => {
                log::warn!("cannot take a connection: {error}");
                tokio::time::sleep(RETRY_WAIT).await;
            }
        }
    }
    // When all places are free, all connections have ended.
    let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(GRACE, places.acquire_many(all)).await;
    Ok(())
}

async fn welcome(stream: tokio::net::TcpStream, from: SocketAddr, shared: Arc<Shared>, stop: watch::Receiver<bool>) {
    // Answers are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &shared.tls else {
        return talk(stream, Peer::Trusted, shared, stop).await;
    };
    let accepted = tokio::time::timeout(PATIENCE, tls.accept(stream)).await;
    match accepted {
        Ok(Ok(stream)) => {
            let peer = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
            if let Some(certificate) = peer {
                talk(stream, Peer::Certified(certificate.into_owned()), shared, stop).await;
            }
        }
        Ok(Err(error)) => log::info!("{from} is not let in: {error}"),
        Err(_) => log::info!("{from} took too long to say who it is"),
    }
}

async fn talk<S>(stream: S, peer: Peer, shared: Arc<Shared>, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let (peer, shared) = (peer.clone(), Arc::clone(&shared));
        async move { Ok::<_, Infallible>(respond(&peer, &shared, request).await) }
    });
    let connection =
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(PATIENCE).serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error here is a client that went away.
    tokio::select! {
        _ = connection.as_mut() => {}
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn respond(peer: &Peer, shared: &Shared, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match answer(peer, shared, request).await {
        Ok(response) => response,
        Err(refused) => respond_with(refused.error.status(), "application/json", json(&refused)),
    }
}

async fn answer(peer: &Peer, shared: &Shared, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Refused> {
    let (head, body) = request.into_parts();
    let found = routes::find(head.method.as_str(), head.uri.path())?;
    may(peer, &shared.rights, &found)?;
    let body = tokio::time::timeout(PATIENCE, Limited::new(body, BODY_MAX).collect()).await;
    let body = match body {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(Refused { error: Code::TooLong, message: format!("a request's body has {BODY_MAX} bytes at most") });
        }
        Ok(Err(error)) => return Err(Refused { error: Code::BadRequest, message: format!("the body broke off: {error}") }),
        Err(_) => return Err(Refused { error: Code::BadRequest, message: "the body took too long".to_owned() }),
    };
    let Some(ask) = found.ask(head.uri.query().unwrap_or(""), &body)? else {
        return read(shared, found.route.operation);
    };
    let followed = shared.handle.submit(ask)?.await.unwrap_or_else(|_| Err(writer::stopping()))?;
    let body = match followed {
        Answer::Lease(answer) => json(&answer),
        Answer::Renewed(answer) => json(&answer),
        Answer::Assignment(answer) => json(&answer),
        Answer::WorkList(answer) => json(&answer),
        Answer::Done => json(&Done {}),
    };
    Ok(respond_with(200, "application/json", body))
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

/// Answers from what is published; nobody waits for the writer.
fn read(shared: &Shared, operation: Operation) -> Result<Response<Full<Bytes>>, Refused> {
    let published = shared.handle.published();
    let status = || published.book.status(shared.handle.clock.now(), published.trouble.clone());
    let body = match operation {
        Operation::Slices => json(&published.book.slice_list()),
        Operation::Permissions => json(&published.book.permissions()),
        Operation::Description => shared.description.clone().into_bytes(),
        Operation::Metrics => {
            let text = shared.handle.metrics.render(&status());
            let text = text.map_err(|error| Refused { error: Code::Busy, message: error.to_string() })?;
            return Ok(respond_with(200, "application/openmetrics-text; version=1.0.0; charset=utf-8", text.into_bytes()));
        }
        _ => json(&status()),
    };
    Ok(respond_with(200, "application/json", body))
}

/// Our own messages: they can all be JSON.
fn json<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

fn respond_with(status: u16, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
