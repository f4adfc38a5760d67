//! Which address gives which answer.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lockstep_service::clock::unix_ms;
use lockstep_service::exposition::TEXT_FORMAT;
use lockstep_service::http::server::plain;

use crate::page::ASSETS;
use crate::site::Site;
use crate::{api, health, metrics};

/// The pages of the site.
pub fn router(site: &Arc<Site>) -> Router {
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
        .with_state(Arc::clone(site))
}

async fn metrics_page(State(site): State<Arc<Site>>) -> Response {
    let news = Arc::clone(&site.news.borrow());
    let mut text = metrics::render(&news.state, unix_ms());
    text.push_str(&metrics::forecast(&news.state, &news.forecast));
    if let Some(keeper) = &site.keeper {
        text.push_str(&metrics::history(&keeper.status(), unix_ms()));
    }
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response()
}

async fn health_page(State(site): State<Arc<Site>>) -> Response {
    let state = Arc::clone(&site.news.borrow().state);
    let (healthy, body) = health::health(&state, unix_ms());
    let status = match healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, [(header::CONTENT_TYPE, api::JSON)], body).into_response()
}
