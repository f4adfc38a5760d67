//! A server of pages for people and programs: which requests are answered, and limits on connections.
//!
//! Only GET and HEAD are answered, and OPTIONS on open pages. While the server listens on the loopback, a
//! page on the Internet could lead a browser here by a name that resolves to this machine. So requests
//! for other host names than our own are refused.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::auth::Login;
use super::bounded::{Guarded, Limited};
use super::checks::{self, Checks};
use super::door::Doors;
use super::hosts::Hosts;

/// Most connections at once; then the one ends that is silent longest.
const MOST_CONNECTIONS: usize = 64;

/// Longest head of a request, in bytes.
const LARGEST_HEAD: usize = 16 * 1024;

/// Most header lines of a request.
const MOST_HEADERS: usize = 64;

/// How long a client may take to send the head of a request, of later ones on a connection too.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// How long a TLS handshake may take.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// How long the answer to a wrong login is delayed.
const WRONG_LOGIN: Duration = Duration::from_millis(500);

/// How long requests may go on once the server ends.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         object-src 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (header::CACHE_CONTROL, "no-store"),
];

/// What decides who is answered, and for how long.
pub struct Server {
    pub doors: Arc<Doors>,
    /// The names that requests may ask for.
    pub hosts: Hosts,
    /// Whether a path is answered without a login, too.
    pub is_open: fn(&str) -> bool,
    /// Checks of proxies, of paths that are open; without TLS they get their status from here.
    pub checks: Option<Checks>,
    /// True once the server ends.
    pub stopping: watch::Receiver<bool>,
}

/// Address of the client.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);

/// Whether a request came with a login; false where none is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedIn(pub bool);

/// A response of plain text.
pub fn plain(status: StatusCode, words: &str) -> Response {
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, text, format!("{words}\n")).into_response()
}

/// Waits until the server ends.
pub async fn ended(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which ends the server too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Serves until the server is stopping, then gives requests a moment to end.
pub async fn serve(listener: TcpListener, server: Arc<Server>, router: Router) {
    let router = router.layer(middleware::from_fn_with_state(Arc::clone(&server), guard));
    let mut limited = Limited::new(listener, MOST_CONNECTIONS);
    let mut stopping = server.stopping.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, peer) = limited.accept() => {
                connections.spawn(connection(stream, peer, router.clone(), Arc::clone(&server)));
            }
            Some(_) = connections.join_next() => {}
            () = ended(&mut stopping) => break,
        }
    }
    drop(limited);
    let all = async { while connections.join_next().await.is_some() {} };
    // Requests that have not ended by then are dropped.
    let _ = timeout(LAST_REQUESTS, all).await;
}

async fn connection(stream: Guarded, peer: SocketAddr, router: Router, server: Arc<Server>) {
    let Some(tls) = server.doors.tls() else {
        return plain_requests(stream, peer, router, server).await;
    };
    match timeout(HANDSHAKE_PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, peer, router, server).await,
        Ok(Err(error)) => debug!(%peer, %error, "no TLS"),
        Err(_) => debug!(%peer, "no TLS within {HANDSHAKE_PATIENCE:?}"),
    }
}

/// Without TLS, checks are answered first.
async fn plain_requests(stream: Guarded, peer: SocketAddr, router: Router, server: Arc<Server>) {
    let Some(checks) = &server.checks else {
        return requests(stream, peer, router, server).await;
    };
    let mut stopping = server.stopping.clone();
    let left = tokio::select! {
        left = checks::answer(stream, checks, HEAD_PATIENCE) => left,
        () = ended(&mut stopping) => None,
    };
    if let Some(stream) = left {
        requests(stream, peer, router, Arc::clone(&server)).await;
    }
}

async fn requests<S>(stream: S, peer: SocketAddr, router: Router, server: Arc<Server>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stopping = server.stopping.clone();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request| {
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = ended(&mut stopping) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        debug!(%peer, %error, "a connection has failed");
    }
}

/// Refuses requests that are not allowed, and adds the headers of every answer.
async fn guard(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let mut response = match allow(&server, &request) {
        Err(refused) => {
            let (refusal, pause) = *refused;
            sleep(pause).await;
            refusal
        }
        Ok(login) => {
            request.extensions_mut().insert(login);
            next.run(request).await
        }
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A refusal, and how long to delay it.
type Refusal = Box<(Response, Duration)>;

/// Whether a request that is allowed has a login.
fn allow(server: &Server, request: &Request) -> Result<LoggedIn, Refusal> {
    if !server.hosts.allow_request(request) {
        let words =
            "this host name is not allowed: ask for localhost, or allow the name with --allow-host";
        let refusal = plain(StatusCode::MISDIRECTED_REQUEST, words);
        return Err(Box::new((refusal, Duration::ZERO)));
    }
    let login = login(server, request)?;
    match *request.method() {
        Method::GET | Method::HEAD => Ok(login),
        Method::OPTIONS if (server.is_open)(request.uri().path()) => Ok(login),
        _ => {
            let (words, allowed) = match (server.is_open)(request.uri().path()) {
                true => ("only GET, HEAD and OPTIONS", "GET, HEAD, OPTIONS"),
                false => ("only GET and HEAD", "GET, HEAD"),
            };
            let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, words);
            let allowed = HeaderValue::from_static(allowed);
            refusal.headers_mut().insert(header::ALLOW, allowed);
            Err(Box::new((refusal, Duration::ZERO)))
        }
    }
}

fn login(server: &Server, request: &Request) -> Result<LoggedIn, Refusal> {
    let Some(logins) = server.doors.logins() else {
        return Ok(LoggedIn(false));
    };
    let given = request.headers().get(header::AUTHORIZATION);
    let pause = match logins.check(given.map(HeaderValue::as_bytes)) {
        Login::Right => return Ok(LoggedIn(true)),
        Login::Missing if (server.is_open)(request.uri().path()) => return Ok(LoggedIn(false)),
        Login::Missing => Duration::ZERO,
        Login::Wrong => {
            let peer = request.extensions().get::<Peer>();
            let peer = peer.map_or_else(String::new, |peer| peer.0.to_string());
            warn!(%peer, "wrong user name or password");
            WRONG_LOGIN
        }
    };
    let mut refusal = plain(
        StatusCode::UNAUTHORIZED,
        "a user name and its password are needed",
    );
    let how = HeaderValue::from_static("Basic realm=\"lockstep\", charset=\"UTF-8\"");
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    Err(Box::new((refusal, pause)))
}
