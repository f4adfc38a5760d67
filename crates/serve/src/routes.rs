//! Which address gives which answer.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lockstep_service::clock::unix_ms;
use lockstep_service::exposition::{TEXT_FORMAT, merged};
use lockstep_service::http::server::plain;

use crate::page::ASSETS;
use crate::site::{ClusterSite, Site, parameter};
use crate::{api, health, metrics};

/// The pages of the site.
pub fn router(site: &Arc<Site>) -> Router {
    let mut router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(health_page))
        .route("/api/clusters", get(api::clusters))
        .route("/api/state", get(api::state))
        .route("/api/history", get(api::history))
        .route("/api/incidents", get(api::incidents))
        .route("/api/pool", get(api::pool))
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
    let of_one = |cluster: &ClusterSite| {
        let news = Arc::clone(&cluster.news.borrow());
        let mut text = metrics::render(&news.state, unix_ms());
        text.push_str(&metrics::forecast(&news.state, &news.forecast));
        if let Some(keeper) = &cluster.keeper {
            text.push_str(&metrics::history(&news.state, &keeper.status(), unix_ms()));
        }
        text
    };
    let texts: Vec<String> = site.clusters.iter().map(of_one).collect();
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], merged(&texts)).into_response()
}

/// The health of the cluster that the query names, or of all.
async fn health_page(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    let wanted = parameter(query.as_deref(), "cluster");
    let clusters: Vec<&ClusterSite> = match wanted {
        None => site.clusters.iter().collect(),
        Some(_) => match site.cluster(wanted) {
            Ok(cluster) => vec![cluster],
            Err(words) => return plain(StatusCode::NOT_FOUND, &words),
        },
    };
    let states = clusters
        .iter()
        .map(|it| Arc::clone(&it.news.borrow().state));
    let (healthy, body) = health::health(&states.collect::<Vec<_>>(), unix_ms());
    let status = match healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, [(header::CONTENT_TYPE, api::JSON)], body).into_response()
}
