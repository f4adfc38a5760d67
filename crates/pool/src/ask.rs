//! Asks an agent over HTTP, as `lockstep pool status` does.

use std::path::Path;

use lockstep_service::address::HostPort;
use lockstep_service::http::client;
use serde_json::Value;

use crate::state::Door;

pub use client::AskingError;

/// Most bytes of an answer.
const MOST_ANSWER: u64 = 64 * 1024;

/// How agents are asked.
#[derive(Debug)]
pub struct Asking(client::Asking);

impl Asking {
    /// Reads the login, the first line of a file that others must not be able to read, and the certificate
    /// authority.
    pub fn open(login: Option<&Path>, authority: Option<&Path>) -> Result<Self, AskingError> {
        client::Asking::open(login, authority, MOST_ANSWER).map(Self)
    }

    /// What an agent knows of its node at a door: all of it with a login, state and lag without.
    pub fn ask(&self, agent: &HostPort, door: Door) -> Result<Value, String> {
        let path = match self.0.has_login() {
            true => format!("/status?door={}", door.name()),
            false => format!("/pool/{}", door.name()),
        };
        let (status, body) = self.0.get(agent, &path)?;
        match (status, serde_json::from_str(&body)) {
            (200 | 404 | 503, Ok(json)) => Ok(json),
            (401, _) => Err("it wants a login: give --login-file".to_owned()),
            (status, _) => Err(format!("it answers {status}: {}", body.trim())),
        }
    }
}
