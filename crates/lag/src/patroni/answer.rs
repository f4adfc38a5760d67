//! What Patroni answers to `GET /cluster`, read so that one odd member spoils no other.

use lockstep_service::sanitize::sanitize;
use serde::Deserialize;
use serde_json::Value;

use super::MOST_MEMBERS;
use crate::node::MOST_NAME;

/// States of a member whose server runs.
const WELL: [&str; 3] = ["running", "streaming", "in archive recovery"];

/// Most characters of a value that is told.
const MOST_TOLD: usize = 60;

/// What a member is, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRole {
    /// `leader`, or `master` as Patroni before 2 called it.
    Leader,
    /// `standby_leader`: the first standby of a cluster whose primary is elsewhere.
    StandbyLeader,
    /// All others.
    Replica,
}

/// A member, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub role: MemberRole,
    /// Host and port of its server, or why they cannot be used.
    pub place: Result<(String, u16), String>,
    /// What Patroni calls its state, unless its server runs.
    pub trouble: Option<String>,
    /// Patroni never promotes it.
    pub no_failover: bool,
}

/// The cluster as Patroni sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub members: Vec<Member>,
    /// Number of members that cannot be told apart, as they have no name.
    pub nameless: usize,
    /// Patroni leaves the cluster alone.
    pub is_paused: bool,
}

#[derive(Deserialize)]
struct Told {
    members: Vec<Value>,
    #[serde(default)]
    pause: Value,
}

/// Reads the answer to `GET /cluster`.
pub fn parse(text: &str) -> Result<Answer, String> {
    let told: Told = serde_json::from_str(text)
        .map_err(|_| "what it answers is no list of members as Patroni's".to_owned())?;
    let number = told.members.len();
    if number > MOST_MEMBERS {
        return Err(format!(
            "it names {number} members; {MOST_MEMBERS} at most are watched"
        ));
    }
    let members: Vec<Member> = told.members.iter().filter_map(member).collect();
    Ok(Answer {
        nameless: number - members.len(),
        members,
        is_paused: told.pause == Value::Bool(true),
    })
}

fn member(told: &Value) -> Option<Member> {
    let word = |key: &str| told.get(key).and_then(Value::as_str).unwrap_or_default();
    let name: String = sanitize(word("name")).chars().take(MOST_NAME).collect();
    let state = shortened(word("state"));
    Some(Member {
        role: match word("role") {
            "leader" | "master" => MemberRole::Leader,
            "standby_leader" => MemberRole::StandbyLeader,
            _ => MemberRole::Replica,
        },
        place: place(told),
        trouble: Some(state).filter(|it| !it.is_empty() && !WELL.contains(&it.as_str())),
        no_failover: no_failover(told.get("tags")),
        name: Some(name).filter(|name| !name.is_empty())?,
    })
}

fn place(told: &Value) -> Result<(String, u16), String> {
    let host = match told.get("host") {
        None | Some(Value::Null) => "",
        Some(Value::String(host)) => host,
        Some(other) => return Err(format!("Patroni says that its host is {}", short(other))),
    };
    if host.is_empty() {
        return Err("Patroni gives no address for it".to_owned());
    }
    let port = match told.get("port") {
        None | Some(Value::Null) => 5432,
        Some(port) => port
            .as_u64()
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| format!("Patroni says that its port is {}", short(port)))?,
    };
    Ok((host.to_owned(), port))
}

/// The tag `nofailover`, or a `failover_priority` of 0, which means the same where that tag is not set.
fn no_failover(tags: Option<&Value>) -> bool {
    let tag = |key: &str| tags.and_then(|tags| tags.get(key));
    match tag("nofailover") {
        Some(Value::Bool(set)) => *set,
        _ => tag("failover_priority")
            .and_then(Value::as_i64)
            .is_some_and(|it| it <= 0),
    }
}

fn short(value: &Value) -> String {
    shortened(&value.to_string())
}

fn shortened(text: &str) -> String {
    sanitize(text).chars().take(MOST_TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(rest: &str) -> Member {
        let text = format!(r#"{{"members": [{{"name": "n3", "role": "replica"{rest}}}]}}"#);
        parse(&text).unwrap().members.remove(0)
    }

    #[test]
    fn an_address_is_read_or_it_is_said_why_not() {
        let place = |rest: &str| match one(rest).place {
            Ok((host, port)) => format!("{host}:{port}"),
            Err(words) => words,
        };
        for (rest, expected) in [
            (r#", "host": "h", "port": 5433"#, "h:5433"),
            (r#", "host": "h""#, "h:5432"),
            (r#", "host": "h", "port": null"#, "h:5432"),
            ("", "Patroni gives no address for it"),
            (
                r#", "host": "", "port": 5432"#,
                "Patroni gives no address for it",
            ),
            (r#", "host": 5"#, "Patroni says that its host is 5"),
            (
                r#", "host": "h", "port": "5432""#,
                "Patroni says that its port is \"5432\"",
            ),
            (
                r#", "host": "h", "port": 99999"#,
                "Patroni says that its port is 99999",
            ),
            (
                r#", "host": "h", "port": -1"#,
                "Patroni says that its port is -1",
            ),
            (
                r#", "host": "h", "port": 0"#,
                "Patroni says that its port is 0",
            ),
        ] {
            assert_eq!(place(rest), expected, "{rest}");
        }
    }

    #[test]
    fn states_in_which_no_server_runs_are_kept() {
        for state in ["running", "streaming", "in archive recovery", ""] {
            assert_eq!(one(&format!(r#", "state": "{state}""#)).trouble, None);
        }
        for state in ["start failed", "crashed", "stopped", "creating replica"] {
            let trouble = one(&format!(r#", "state": "{state}""#)).trouble;
            assert_eq!(trouble.as_deref(), Some(state));
        }
        assert_eq!(one(r#", "state": 7"#).trouble, None);
    }

    #[test]
    fn tags_and_pause_are_read() {
        for (tags, expected) in [
            ("{}", false),
            (r#"{"nofailover": true}"#, true),
            (r#"{"nofailover": false, "failover_priority": 0}"#, false),
            (r#"{"failover_priority": 0}"#, true),
            (r#"{"failover_priority": 1}"#, false),
            ("7", false),
        ] {
            let member = one(&format!(r#", "tags": {tags}"#));
            assert_eq!(member.no_failover, expected, "{tags}");
        }
        for (text, paused) in [
            (r#"{"members": []}"#, false),
            (r#"{"members": [], "pause": true}"#, true),
            (r#"{"members": [], "pause": false}"#, false),
        ] {
            assert_eq!(parse(text).unwrap().is_paused, paused, "{text}");
        }
    }

    #[test]
    fn what_has_no_name_is_counted() {
        let answer = parse(r#"{"members": [{"name": "a"}, {}, 7, {"name": ""}, {"name": 5}]}"#);
        let answer = answer.unwrap();
        assert_eq!((answer.members.len(), answer.nameless), (1, 4));
    }
}
