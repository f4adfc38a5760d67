//! What a service says of itself over HTTP: `GET /metrics` for Prometheus, `GET /healthz` with 200 or
//! 503. There is no login, so a service listens on the loopback unless told otherwise.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::bounded::Limited;
use crate::exposition::TEXT_FORMAT;

/// Most connections at once; then the one ends that is silent longest.
pub const MOST_CONNECTIONS: usize = 32;

/// How long requests under way may take once the service ends.
pub const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// What is on the pages.
pub trait Pages: Send + Sync {
    /// Everything as Prometheus reads it.
    fn metrics(&self) -> String;

    /// Whether all is well, and JSON for people who ask why not.
    fn health(&self) -> (bool, String);
}

fn router(pages: Arc<dyn Pages>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(pages)
}

async fn metrics(State(pages): State<Arc<dyn Pages>>) -> Response {
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], pages.metrics()).into_response()
}

async fn health(State(pages): State<Arc<dyn Pages>>) -> Response {
    let (healthy, body) = pages.health();
    let status = match healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let content = [(header::CONTENT_TYPE, "application/json")];
    (status, content, body).into_response()
}

/// Serves the pages until `stop` is done, then ends what is under way.
pub async fn serve(
    listener: TcpListener,
    pages: Arc<dyn Pages>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopped, mut stopping) = tokio::sync::watch::channel(false);
    let graceful = async move {
        stop.await;
        let _ = stopped.send(true);
    };
    let limited = Limited::new(listener, MOST_CONNECTIONS);
    let serving = axum::serve(limited, router(pages)).with_graceful_shutdown(graceful);
    let hurry = async {
        // An error means that the other side is gone, that is, that it has stopped.
        let _ = stopping.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(LAST_REQUESTS).await;
    };
    tokio::select! {
        result = serving.into_future() => result,
        () = hurry => Ok(()),
    }
}
