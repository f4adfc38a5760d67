//! HAProxy's agent-check: a connection gets one line, and is closed. HAProxy sends first for which
//! door it asks (`agent-send`), with a full stop, since its runtime socket takes no line end there; without
//! one the node's own door is meant.
//!
//! There is no login and no TLS, since HAProxy knows neither here: the answer says no more than the checks
//! over HTTP say without a login.

use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use lockstep_service::http::bounded::Limited;
use lockstep_service::http::server::ended;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::check::PoolDoor;

/// Most connections at once; then the one ends that is silent longest.
const MOST_CONNECTIONS: usize = 256;

/// How long the question may take. HAProxy sends it at once, or never; a packet that is lost comes later. An
/// answer for the wrong door would cut sessions off, and none at all changes nothing in HAProxy.
const QUESTION_WITHIN: Duration = Duration::from_secs(1);

/// Longest question, in bytes.
const LONGEST_QUESTION: usize = 64;

/// Answers until the agent stops.
pub async fn serve(listener: TcpListener, agent: Arc<Agent>, mut stopping: watch::Receiver<bool>) {
    let mut limited = Limited::new(listener, MOST_CONNECTIONS);
    loop {
        tokio::select! {
            (stream, _) = limited.accept() => {
                let agent = Arc::clone(&agent);
                tokio::spawn(async move { answer(stream, &agent).await });
            }
            () = ended(&mut stopping) => return,
        }
    }
}

async fn answer(mut stream: impl AsyncRead + tokio::io::AsyncWrite + Unpin, agent: &Agent) {
    let door = match question(&mut stream).await.as_str() {
        "" => Some(PoolDoor::Readers(agent.rules().door)),
        text => PoolDoor::parse(text),
    };
    let line = match door {
        Some(door) => door.agent_words(&agent.verdict_at(door.readers())),
        None => "down # no such door".to_owned(),
    };
    // Whoever has gone needs no answer. The end comes after it, since the question was read.
    let _ = stream.write_all(format!("{line}\n").as_bytes()).await;
}

/// What was sent up to a full stop or the line's end; empty if nothing came.
async fn question(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = Vec::new();
    let line = async {
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'.');
        while !text.iter().any(is_end) && text.len() < LONGEST_QUESTION {
            let mut bytes = [0; LONGEST_QUESTION];
            match stream.read(&mut bytes).await {
                Ok(0) | Err(_) => break,
                Ok(length) => text.extend(bytes.iter().take(length)),
            }
        }
    };
    let _ = timeout(QUESTION_WITHIN, line).await;
    let text = String::from_utf8_lossy(&text);
    text.trim().trim_end_matches('.').to_owned()
}
