//! Which address gives which answer, to whom; limits on connections.
//!
//! Only GET and HEAD are answered. While the server listens on the loopback, a page on the
//! Internet could lead a browser here by a name that resolves to this machine. So requests for
//! other host names than our own are refused.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lockstep_lag::monitor::Monitor;
use lockstep_service::bounded::{Guarded, Limited};
use lockstep_service::exposition::TEXT_FORMAT;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::auth::Login;
use super::door::Doors;
use super::feed::News;
use super::history::Keeper;
use super::page::ASSETS;
use super::{api, health, metrics};

/// Most connections at once; then the one ends that is silent longest.
const MOST_CONNECTIONS: usize = 64;

/// Most streams of events at once. Connections beyond this are left for metrics and health.
pub const MOST_STREAMS: usize = 32;

/// Most threads that read the history at once.
const MOST_READERS: usize = 2;

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

/// Everything that answers are made from.
pub struct Site {
    pub news: watch::Receiver<Arc<News>>,
    pub monitor: Arc<Monitor>,
    /// What keeps the history on disk.
    pub keeper: Option<Arc<Keeper>>,
    /// Permits for threads that read from that disk.
    pub readers: Arc<Semaphore>,
    pub doors: Arc<Doors>,
    /// The names that requests may ask for.
    pub hosts: Hosts,
    /// True once the server ends.
    pub stopping: watch::Receiver<bool>,
    /// Permits for streams of events.
    pub streams: Arc<Semaphore>,
}

/// Permits for [`MOST_STREAMS`] streams of events.
pub fn streams() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_STREAMS))
}

/// Host names that requests may ask for; None allows any.
#[derive(Debug, PartialEq, Eq)]
pub struct Hosts(Option<Vec<String>>);

impl Hosts {
    /// On the loopback: the names of this machine, the address that was given, and `allowed`.
    /// Elsewhere: any name, or only `allowed` and the address if names are given.
    pub fn of(address: SocketAddr, listen: &str, allowed: &[String]) -> Self {
        let is_loopback = address.ip().is_loopback();
        if !is_loopback && allowed.is_empty() {
            return Self(None);
        }
        let mut names = vec![address.ip().to_string(), listen.to_owned()];
        if is_loopback {
            names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        }
        names.extend(allowed.iter().cloned());
        for name in &mut names {
            name.make_ascii_lowercase();
        }
        Self(Some(names))
    }

    /// Whether a header `Host`, with or without a port, has an allowed name.
    fn allow(&self, host: &str) -> bool {
        let Some(names) = &self.0 else {
            return true;
        };
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        // The same IPv6 address can be written in several ways.
        let same = |ours: &String| {
            *ours == name
                || ours
                    .parse::<IpAddr>()
                    .is_ok_and(|ours| name.parse() == Ok(ours))
        };
        names.iter().any(same)
    }

    /// A request without a host name comes from no browser, and is allowed.
    fn allow_request(&self, request: &Request) -> bool {
        let named = request.headers().get_all(header::HOST).iter();
        let mut hosts = named.map(|host| host.to_str().unwrap_or("?"));
        let target = request.uri().host();
        hosts.all(|host| self.allow(host)) && target.is_none_or(|host| self.allow(host))
    }
}

/// Address of the client.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);

/// A response of plain text.
pub fn plain(status: StatusCode, words: &str) -> Response {
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, text, format!("{words}\n")).into_response()
}

/// Permits for [`MOST_READERS`] threads that may hang on a disk.
pub fn readers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_READERS))
}

/// Waits until the server ends.
pub async fn ended(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which ends the server too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Milliseconds since 1970, by the clock of this machine.
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

/// Serves until the site is stopping, then gives requests a moment to end.
pub async fn serve(listener: TcpListener, site: Arc<Site>) {
    let router = router(&site);
    let mut limited = Limited::new(listener, MOST_CONNECTIONS);
    let mut stopping = site.stopping.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, peer) = limited.accept() => {
                let router = router.clone().layer(Extension(Peer(peer)));
                connections.spawn(connection(stream, peer, router, Arc::clone(&site)));
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

async fn connection(stream: Guarded, peer: SocketAddr, router: Router, site: Arc<Site>) {
    let Some(tls) = site.doors.tls() else {
        return requests(stream, peer, router, site).await;
    };
    match timeout(HANDSHAKE_PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, peer, router, site).await,
        Ok(Err(error)) => debug!(%peer, %error, "no TLS"),
        Err(_) => debug!(%peer, "no TLS within {HANDSHAKE_PATIENCE:?}"),
    }
}

async fn requests<S>(stream: S, peer: SocketAddr, router: Router, site: Arc<Site>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stopping = site.stopping.clone();
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
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

fn router(site: &Arc<Site>) -> Router {
    let mut router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(health_page))
        .route("/api/state", get(api::state))
        .route("/api/history", get(api::history))
        .route("/api/incidents", get(api::incidents))
        .route("/api/events", get(api::events));
    for asset in ASSETS {
        let answer = async || ([(header::CONTENT_TYPE, asset.content_type)], asset.text);
        router = router.route(asset.path, get(answer));
    }
    router
        .fallback(async || {
            plain(
                StatusCode::NOT_FOUND,
                "there is nothing here; see docs/serve.md",
            )
        })
        .layer(middleware::from_fn_with_state(Arc::clone(site), guard))
        .with_state(Arc::clone(site))
}

/// Refuses requests that are not allowed, and adds the headers of every answer.
async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&site, &request) {
        Some((refusal, pause)) => {
            sleep(pause).await;
            refusal
        }
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The refusal of a request that is not allowed, and how long to delay it.
fn refusal(site: &Site, request: &Request) -> Option<(Response, Duration)> {
    if !site.hosts.allow_request(request) {
        let words =
            "this host name is not allowed: ask for localhost, or allow the name with --allow-host";
        let refusal = plain(StatusCode::MISDIRECTED_REQUEST, words);
        return Some((refusal, Duration::ZERO));
    }
    if let Some(refusal) = no_login(site, request) {
        return Some(refusal);
    }
    match *request.method() {
        Method::GET | Method::HEAD => None,
        _ => {
            let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refusal.headers_mut().insert(header::ALLOW, allowed);
            Some((refusal, Duration::ZERO))
        }
    }
}

fn no_login(site: &Site, request: &Request) -> Option<(Response, Duration)> {
    let logins = site.doors.logins()?;
    let given = request.headers().get(header::AUTHORIZATION);
    let pause = match logins.check(given.map(HeaderValue::as_bytes)) {
        Login::Right => return None,
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
    Some((refusal, pause))
}

async fn metrics_page(State(site): State<Arc<Site>>) -> Response {
    let state = Arc::clone(&site.news.borrow().state);
    let mut text = metrics::render(&state, now_ms());
    if let Some(keeper) = &site.keeper {
        text.push_str(&metrics::history(&keeper.status(), now_ms()));
    }
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response()
}

async fn health_page(State(site): State<Arc<Site>>) -> Response {
    let state = Arc::clone(&site.news.borrow().state);
    let (healthy, body) = health::health(&state, now_ms());
    let status = match healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, [(header::CONTENT_TYPE, api::JSON)], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_loopback_only_our_own_names_are_answered() {
        let hosts = Hosts::of(
            "127.0.0.1:9871".parse().unwrap(),
            "127.0.0.1",
            &["Proxy.example".to_owned()],
        );
        for (host, allowed) in [
            ("localhost", true),
            ("LOCALHOST:9871", true),
            ("localhost.:1", true),
            ("127.0.0.1:9871", true),
            ("[::1]:9871", true),
            ("[0:0:0:0:0:0:0:1]", true),
            ("proxy.example", true),
            ("", false),
            ("evil.example", false),
            ("evil.example:9871", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:80", false),
            ("127.0.0.2", false),
            ("[::1", false),
            ("?", false),
        ] {
            assert_eq!(hosts.allow(host), allowed, "{host}");
        }
    }

    #[test]
    fn elsewhere_any_name_is_or_those_that_are_allowed() {
        let address = "192.0.2.1:9871".parse().unwrap();
        assert!(Hosts::of(address, "0.0.0.0", &[]).allow("anything"));
        let named = Hosts::of(address, "db1", &["lag.example".to_owned()]);
        for (host, allowed) in [
            ("lag.example", true),
            ("db1:9871", true),
            ("192.0.2.1:9871", true),
            ("localhost", false),
            ("evil.example", false),
        ] {
            assert_eq!(named.allow(host), allowed, "{host}");
        }
    }
}
