//! States, history and events as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use lockstep_lag::monitor::{LinkHistory, Moment};
use lockstep_service::clock::unix_ms;
use lockstep_service::http::server::{ended, plain};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;

use crate::feed::News;
use crate::history::Keeper;
use crate::pool::not_asked;
use crate::site::{ClusterSite, MOST_STREAMS, Site, parameter};
use crate::verdict::Verdict;

pub const JSON: &str = "application/json";

/// Longest silence of a stream without news: a comment follows, so that no proxy takes it for dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Most events that wait for one reader. Only the newest state counts, so one is enough.
const MOST_EVENTS: usize = 1;

/// How long the disk may take.
const DISK_PATIENCE: Duration = Duration::from_secs(2);

/// Most moments of a link that the disk gives at once.
const MOST_MOMENTS: i64 = 3600;

type Former = BTreeMap<String, Vec<Moment>>;

/// The cluster that a query names; words if there is none such.
fn wanted<'a>(site: &'a Site, query: Option<&str>) -> Result<&'a ClusterSite, String> {
    site.cluster(parameter(query, "cluster"))
}

fn not_found(words: &str) -> Response {
    plain(StatusCode::NOT_FOUND, words)
}

/// A cluster in the list of all.
#[derive(Serialize)]
struct Listed<'a> {
    /// Null if the nodes file names none.
    name: Option<&'a str>,
    /// Milliseconds since 1970, by the clock of this machine.
    at_ms: i64,
    verdict: Verdict,
}

impl<'a> Listed<'a> {
    fn of(cluster: &'a ClusterSite) -> Self {
        let news = cluster.news.borrow();
        Self {
            name: cluster.name.as_deref(),
            at_ms: news.state.at_ms,
            verdict: news.verdict.clone(),
        }
    }
}

/// What is the matter with each cluster.
pub async fn clusters(State(site): State<Arc<Site>>) -> Response {
    let all: Vec<Listed<'_>> = site.clusters.iter().map(Listed::of).collect();
    let json = serde_json::json!({ "clusters": all }).to_string();
    ([(header::CONTENT_TYPE, JSON)], json).into_response()
}

/// The newest state.
pub async fn state(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    match wanted(&site, query.as_deref()) {
        Ok(cluster) => {
            let json = cluster.news.borrow().json.clone();
            ([(header::CONTENT_TYPE, JSON)], json).into_response()
        }
        Err(words) => not_found(&words),
    }
}

/// The pool, as its agents tell it.
pub async fn pool(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    match wanted(&site, query.as_deref()) {
        Ok(cluster) => {
            let told = cluster.pool.as_ref().map(|told| told.borrow().clone());
            let json = told.unwrap_or_else(not_asked);
            ([(header::CONTENT_TYPE, JSON)], json).into_response()
        }
        Err(words) => not_found(&words),
    }
}

/// What was the matter.
pub async fn incidents(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    match wanted(&site, query.as_deref()) {
        Ok(cluster) => {
            let json = cluster.news.borrow().incidents.clone();
            ([(header::CONTENT_TYPE, JSON)], json).into_response()
        }
        Err(words) => not_found(&words),
    }
}

/// Parameters of `/api/history`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Only moments later than this, in milliseconds since 1970.
    since: i64,
    /// Only the worst moment of each step of this many milliseconds; 0 for all moments.
    step: i64,
}

impl Wanted {
    fn parse(query: Option<&str>) -> Result<Self, String> {
        let mut wanted = Self::default();
        let pairs = query.unwrap_or_default().split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = value.parse::<i64>().ok().filter(|number| *number >= 0);
            match (name, number) {
                ("since", Some(number)) => wanted.since = number,
                ("step", Some(number)) => wanted.step = number,
                ("cluster", _) => {}
                ("since" | "step", None) => {
                    return Err(format!("{name} must be a number of milliseconds"));
                }
                _ => return Err("only since, step and cluster can be asked for".to_owned()),
            }
        }
        Ok(wanted)
    }
}

#[derive(Serialize)]
struct Told {
    /// Milliseconds since 1970, by the clock of this machine.
    at_ms: i64,
    links: Vec<LinkHistory>,
}

/// The history of each link.
pub async fn history(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    let cluster = match wanted(&site, query.as_deref()) {
        Ok(cluster) => cluster,
        Err(words) => return not_found(&words),
    };
    let wanted = match Wanted::parse(query.as_deref()) {
        Ok(wanted) => wanted,
        Err(words) => return plain(StatusCode::BAD_REQUEST, &words),
    };
    let mut links = cluster.monitor.history(wanted.since);
    let mut step = wanted.step;
    if let Some(keeper) = &cluster.keeper {
        let now = unix_ms();
        let since = wanted.since.max(now - keeper.status().kept_ms);
        step = step.max((now - since) / MOST_MOMENTS);
        add_former(
            &mut links,
            former(&site, Arc::clone(keeper), since, step).await,
        );
    }
    for link in &mut links {
        link.moments = worst(std::mem::take(&mut link.moments), step);
    }
    let told = Told {
        at_ms: unix_ms(),
        links,
    };
    match serde_json::to_vec(&told) {
        Ok(json) => ([(header::CONTENT_TYPE, JSON)], json).into_response(),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Moments from the disk. A disk that does not answer soon has none.
async fn former(site: &Site, keeper: Arc<Keeper>, since: i64, step: i64) -> Former {
    let read = async {
        let permit = Arc::clone(&site.readers).acquire_owned().await.ok()?;
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            keeper.read(since, unix_ms(), step)
        });
        work.await.ok()
    };
    timeout(DISK_PATIENCE, read)
        .await
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// Puts moments of the disk before those in memory.
fn add_former(links: &mut Vec<LinkHistory>, former: Former) {
    for (id, mut moments) in former {
        match links.iter_mut().find(|link| link.id == id) {
            Some(link) => {
                let first = link.moments.first().map_or(i64::MAX, |first| first.at_ms);
                moments.retain(|moment| moment.at_ms < first);
                moments.append(&mut link.moments);
                link.moments = moments;
            }
            None => links.push(LinkHistory { id, moments }),
        }
    }
}

/// Keeps the moment with the longest lag of each step, so that no peak is lost.
fn worst(moments: Vec<Moment>, step: i64) -> Vec<Moment> {
    if step <= 1 {
        return moments;
    }
    let mut kept: Vec<Moment> = Vec::new();
    for moment in moments {
        match kept.last_mut() {
            Some(last) if last.at_ms.div_euclid(step) == moment.at_ms.div_euclid(step) => {
                if moment.is_worse_than(last) {
                    *last = moment;
                }
            }
            _ => kept.push(moment),
        }
    }
    kept
}

/// Sends each new state as a Server-Sent Event.
pub async fn events(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    let news = match wanted(&site, query.as_deref()) {
        Ok(cluster) => cluster.news.clone(),
        Err(words) => return not_found(&words),
    };
    let Ok(permit) = Arc::clone(&site.streams).try_acquire_owned() else {
        let words = format!("{MOST_STREAMS} streams are open already; ask /api/state instead");
        return plain(StatusCode::SERVICE_UNAVAILABLE, &words);
    };
    let (sender, receiver) = mpsc::channel(MOST_EVENTS);
    tokio::spawn(send_news(news, site.stopping.clone(), sender));
    let body = Body::new(Events {
        receiver,
        _permit: permit,
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Sends news until the reader is gone, or until the server ends.
async fn send_news(
    mut news: watch::Receiver<Arc<News>>,
    mut stopping: watch::Receiver<bool>,
    sender: mpsc::Sender<Bytes>,
) {
    let mut next = event(&news.borrow_and_update());
    loop {
        tokio::select! {
            sent = sender.send(next) => if sent.is_err() {
                return;
            },
            () = ended(&mut stopping) => return,
        }
        next = tokio::select! {
            changed = timeout(SIGN_OF_LIFE, news.changed()) => match changed {
                Ok(Ok(())) => event(&news.borrow_and_update()),
                Ok(Err(_)) => return,
                Err(_) => Bytes::from_static(b":\n\n"),
            },
            () = ended(&mut stopping) => return,
            () = sender.closed() => return,
        };
    }
}

fn event(news: &News) -> Bytes {
    // The JSON has no line breaks.
    [b"data: ", news.json.as_ref(), b"\n\n"].concat().into()
}

/// The body of a stream of events.
struct Events {
    receiver: mpsc::Receiver<Bytes>,
    /// Released when the reader is gone.
    _permit: OwnedSemaphorePermit,
}

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.receiver.poll_recv(context);
        next.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_or_refused() {
        let wanted = |since, step| Ok(Wanted { since, step });
        for (query, expected) in [
            (None, wanted(0, 0)),
            (Some(""), wanted(0, 0)),
            (Some("since=5"), wanted(5, 0)),
            (Some("step=3000&since=5"), wanted(5, 3000)),
            (Some("cluster=shop&since=5"), wanted(5, 0)),
        ] {
            assert_eq!(Wanted::parse(query), expected, "{query:?}");
        }
        for query in [
            "since",
            "since=",
            "since=-1",
            "since=x",
            "since=99999999999999999999",
            "step=1.5",
            "other=1",
        ] {
            assert!(Wanted::parse(Some(query)).is_err(), "{query}");
        }
    }

    #[test]
    fn the_worst_moment_of_a_step_stays() {
        let moment = |at_ms, lag_ms, lag_bytes| Moment {
            at_ms,
            lag_ms,
            lag_bytes,
            stage_bytes: [0; 4],
            visible_ms: None,
        };
        let all = vec![
            moment(1000, 1.0, 1),
            moment(1999, 5.0, 1),
            moment(2000, 2.0, 1),
            moment(2500, 2.0, 9),
            moment(2900, 1.0, 99),
            moment(7000, 0.0, 0),
        ];
        assert_eq!(worst(all.clone(), 0), all);
        let kept: Vec<i64> = worst(all, 1000).iter().map(|kept| kept.at_ms).collect();
        assert_eq!(kept, [1999, 2500, 7000]);
    }
}
