//! Asks an agent over HTTP, as `lockstep pool status` does.

use std::path::Path;
use std::thread;

use lockstep_service::address::HostPort;
use lockstep_service::http::client;
use serde_json::{Value, json};

use crate::member::Member;
use crate::state::Door;

pub use client::AskingError;

/// Most bytes of an answer.
const MOST_ANSWER: u64 = 64 * 1024;

/// What an agent answered, or why it did not.
pub type Answer = Result<Value, String>;

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
    pub fn ask(&self, agent: &HostPort, door: Door) -> Answer {
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
    /// Asks the agents of all members at once.
    pub fn ask_all<'m>(&self, members: &'m [Member]) -> Vec<(&'m Member, Answer)> {
        thread::scope(|scope| {
            let asked = members.iter().map(|member| {
                let answer = scope.spawn(move || self.ask(&member.agent, member.door));
                (member, answer)
            });
            let asked: Vec<_> = asked.collect();
            let joined = asked.into_iter().map(|(member, thread)| {
                let answer = thread.join();
                (
                    member,
                    answer.unwrap_or_else(|_| Err("asking it failed".to_owned())),
                )
            });
            joined.collect()
        })
    }
}

/// The nodes with what their agents say, for machines.
pub fn as_json(answers: &[(&Member, Answer)]) -> Value {
    let nodes = answers.iter().map(|(member, answer)| {
        json!({
            "node": member.name,
            "agent": member.agent.to_string(),
            "door": member.door.name(),
            "answer": answer.as_ref().ok(),
            "trouble": answer.as_ref().err(),
        })
    });
    nodes.collect()
}
