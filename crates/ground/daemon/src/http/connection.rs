//! One connection: handshake, requests, deadlines.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::activity::{Activity, Open, Recorded};
use super::{Accept, Answer, Rejection, Service, Shared, stop_requested};

/// Serves a connection until it is closed, expires, is evicted, or the server stops.
pub(super) async fn serve<A: Accept, S: Service<A::Peer>>(
    stream: TcpStream,
    from: SocketAddr,
    shared: &Shared<A, S>,
    open: Open,
    mut stopped: watch::Receiver<bool>,
) {
    let limits = shared.limits;
    // Answers are small, and a client waits for each.
    let _ = stream.set_nodelay(true);
    let activity = &open.activity;
    let handshake = tokio::select! {
        accepted = tokio::time::timeout(limits.handshake_timeout, shared.accept.accept(stream)) => accepted,
        () = activity.evicted.notified() => return,
        () = stop_requested(&mut stopped) => return,
    };
    let (stream, peer) = match handshake {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => return log::info!("connection from {from}: {error}"),
        Err(_) => return log::info!("connection from {from}: no handshake within {} s", limits.handshake_timeout.as_secs()),
    };
    // A request is being answered on every connection: this one is closed, and its client tries again.
    if !open.client_is_known(limits.connections) {
        return;
    }
    let service = service_fn(|request| answer(&peer, shared, activity, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(Recorded::new(stream, Arc::clone(activity))), service);
    let mut connection = std::pin::pin!(connection);
    // hyper limits the head, `answer` the body. What remains is a client that does not read its answer.
    let stall = limits.head_timeout + limits.request_timeout;
    let lifetime = (!limits.keep_alive).then_some(stall);
    // Errors of the connection are clients that went away or broke the protocol: hyper has answered those.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = activity.expired(stall, lifetime) => {}
        () = activity.evicted.notified() => {}
        () = stop_requested(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Answers a request within the deadline.
///
/// # Errors
/// At the deadline. The connection is then closed without an answer: whether the operation takes effect is unknown.
async fn answer<A: Accept, S: Service<A::Peer>>(
    peer: &A::Peer,
    shared: &Shared<A, S>,
    activity: &Arc<Activity>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let begun = tokio::time::Instant::now();
    let timeout = shared.limits.request_timeout;
    let (head, body) = request.into_parts();
    let route = match shared.service.route(peer, &head) {
        Ok(route) => route,
        Err(refused) => return Ok(respond(refused)),
    };
    let limit = shared.service.body_bytes(&route).unwrap_or(shared.limits.body_bytes);
    let body = match tokio::time::timeout_at(begun + timeout, read_body(body, limit)).await {
        Ok(Ok(body)) => body,
        Ok(Err(rejection)) => return Ok(respond(shared.service.reject(rejection))),
        Err(_) => return Ok(respond(shared.service.reject(Rejection::BodyTimeout(timeout)))),
    };
    let _answering = activity.answering();
    let answered = tokio::time::timeout_at(begun + timeout, shared.service.answer(route, head, body)).await;
    answered.map(respond).map_err(|_| io::ErrorKind::TimedOut.into())
}

/// Reads a body of at most `limit` bytes. Without a limit above zero, no body is expected, and none is read.
async fn read_body(body: Incoming, limit: usize) -> Result<Bytes, Rejection> {
    if limit == 0 {
        return Ok(Bytes::new());
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Rejection::BodyTooLong(limit)),
        Err(error) => Err(Rejection::BodyBroken(error.to_string())),
    }
}

fn respond(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    for &(name, value) in answer.headers {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}
