//! Which address gives which answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use lockstep_service::exposition::TEXT_FORMAT;
use lockstep_service::http::server::{LoggedIn, plain};
use serde_json::{Value, json};

use crate::agent::{Agent, Detail};
use crate::check::{Check, CheckAnswer};
use crate::judge::Verdict;
use crate::metrics;
use crate::state::Door;

/// What needs a login.
pub const STATUS: &str = "/status";

const JSON: &str = "application/json";

pub fn router(agent: &Arc<Agent>) -> Router {
    Router::new()
        .route(STATUS, get(status))
        .route("/metrics", get(metrics_page))
        .fallback(any(check))
        .with_state(Arc::clone(agent))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], format!("{body}\n")).into_response()
}

/// State and lag, which everybody may know who reaches the agent.
pub fn brief(verdict: &Verdict, agent: &Agent) -> Value {
    let ms = |age: Option<std::time::Duration>| age.map(|age| age.as_secs_f64() * 1000.0);
    let role = verdict.is_standby.map(|is_standby| match is_standby {
        true => "replica",
        false => "primary",
    });
    let reason = verdict.state.reason();
    json!({
        "state": verdict.state.name(),
        "reason": reason.map(|reason| reason.id()),
        "why": reason.map(|reason| reason.words()),
        "role": role,
        "door": verdict.door.name(),
        "staleness_ms": ms(verdict.staleness),
        "staleness_known": verdict.is_known,
        "received_staleness_ms": ms(verdict.received),
        "lag_bytes": verdict.lag_bytes,
        "bound_ms": ms(Some(agent.rules().bound)),
        "share_percent": verdict.share,
        "risen": verdict.is_risen,
        "takes_writes": verdict.takes_writes,
    })
}

/// Everything.
fn whole((verdict, detail): &(Verdict, Detail), agent: &Agent) -> Value {
    let mut all = brief(verdict, agent);
    let primary = detail.primary.as_ref().map(|answer| {
        json!({
            "system_identifier": answer.system.to_string(),
            "timeline": answer.flushed.timeline.get(),
            "flushed": answer.flushed.lsn,
        })
    });
    let node = detail.node.as_ref().map(|answer| {
        json!({
            "system_identifier": answer.system.to_string(),
            "timeline": answer.timeline.map(|timeline| timeline.get()),
            "shown": answer.shown,
            "received": answer.received,
            "paused": answer.is_paused,
        })
    });
    let more = json!({
        "sessions": verdict.load.map(|load| load.sessions),
        "most_sessions": verdict.load.map(|load| load.most),
        "state_changes": detail.changes,
        "primary": primary,
        "node": node,
        "primary_trouble": joined(&detail.server_troubles).filter(|_| !verdict.is_known),
        "history_trouble": joined(&detail.history_troubles),
        "node_trouble": detail.node_trouble,
    });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

/// The troubles of several servers; None if there is none.
fn joined(troubles: &BTreeMap<String, String>) -> Option<String> {
    let each = troubles
        .iter()
        .map(|(name, words)| format!("{name}: {words}"));
    let all: Vec<_> = each.collect();
    (!all.is_empty()).then(|| all.join("; "))
}

async fn status(
    State(agent): State<Arc<Agent>>,
    Extension(LoggedIn(has_login)): Extension<LoggedIn>,
    uri: Uri,
) -> Response {
    if !has_login {
        let words = "this needs a login: start the agent with --auth-file";
        return plain(StatusCode::FORBIDDEN, words);
    }
    let asked = uri.query().unwrap_or_default();
    let door = asked.strip_prefix("door=").and_then(Door::parse);
    match asked.is_empty() || door.is_some() {
        true => json_response(StatusCode::OK, &whole(&agent.look(door), &agent)),
        false => plain(
            StatusCode::BAD_REQUEST,
            "it knows door=fresh and door=reports",
        ),
    }
}

async fn metrics_page(
    State(agent): State<Arc<Agent>>,
    Extension(LoggedIn(has_login)): Extension<LoggedIn>,
) -> Response {
    let text = metrics::render(&agent.look(None), has_login);
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response()
}

/// The status of a check by its path with the query; None if it is none.
pub fn status_of(agent: &Agent, asked: &str) -> Option<u16> {
    let (path, query) = asked.split_once('?').unwrap_or((asked, ""));
    let check = Check::parse(path, query).ok()??;
    let verdict = agent.verdict_at(check.door());
    Some(check.answer(&verdict, agent.rules()).status)
}

/// A check. OPTIONS is answered as GET is, without a body.
async fn check(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let uri = request.uri();
    let check = match Check::parse(uri.path(), uri.query().unwrap_or_default()) {
        Ok(Some(check)) => check,
        Ok(None) => {
            return plain(
                StatusCode::NOT_FOUND,
                "there is nothing here; see docs/pool.md",
            );
        }
        Err(words) => return plain(StatusCode::BAD_REQUEST, &words),
    };
    let verdict = agent.verdict_at(check.door());
    let CheckAnswer { status, why } = check.answer(&verdict, agent.rules());
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    if request.method() == Method::OPTIONS {
        return status.into_response();
    }
    let mut body = brief(&verdict, &agent);
    if let Some(body) = body.as_object_mut() {
        body.insert("not_ok".to_owned(), json!(why));
    }
    json_response(status, &body)
}
