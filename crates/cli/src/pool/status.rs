//! `lockstep pool status`: asks all agents at once.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_pool::ask::{Answer, Asking, as_json};
use lockstep_pool::member::Member;
use lockstep_service::exit::{Failure, LAG, TARGET};
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::figures;
use lockstep_service::words::lines::table;
use lockstep_service::words::output::{self, Output};
use serde_json::{Value, json};

use super::members::MembersArgs;

/// `lockstep pool status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    members: MembersArgs,
    /// A file with user:password of the agents, which others must not be able to read; without a login
    /// agents tell no sessions
    #[arg(long, value_name = "FILE")]
    login_file: Option<PathBuf>,
    /// The agents speak TLS: their certificate authority, PEM
    #[arg(long, value_name = "FILE")]
    agent_ca: Option<PathBuf>,
    /// Format of the result
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Prints what the agents say.
pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let members = args.members.members()?;
    let asking = Asking::open(args.login_file.as_deref(), args.agent_ca.as_deref())
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let answers = asking.ask_all(&members);
    match args.output {
        Output::Text => {
            let heads = [
                "node",
                "door",
                "role",
                "state",
                "staleness",
                "share",
                "warm",
                "sessions",
            ];
            let mut rows = vec![heads.map(str::to_owned).to_vec()];
            rows.extend(answers.iter().map(|(member, answer)| row(member, answer)));
            for line in table(&rows) {
                output::print(&line);
            }
            for (member, answer) in &answers {
                if let Some(why) = why(answer) {
                    output::print(&format!("{}: {why}", member.name));
                }
            }
            if let Some(names) = rivals(&answers) {
                output::print(&format!(
                    "{} all take writes, and writers are sent to each: stop all but the one whose data is to \
                     stay, then rebuild the others from it or pg_rewind them",
                    names.join(", ")
                ));
            }
        }
        Output::Json => {
            let nodes = as_json(&answers);
            output::print(&json!({"schema": 1, "nodes": nodes}).to_string());
        }
    }
    Ok(ExitCode::from(code(&answers)))
}

/// Whether HAProxy sends writers there.
fn is_primary(answer: &Value) -> bool {
    answer.get("takes_writes") == Some(&Value::Bool(true)) && text(answer, "state") != "draining"
}

/// The nodes that take writes, if there are several: no agent knows of the others' node.
fn rivals<'a>(answers: &[(&'a Member, Answer)]) -> Option<Vec<&'a str>> {
    let writes = |(member, answer): &(&'a Member, Answer)| {
        let is_one = answer.as_ref().is_ok_and(is_primary);
        is_one.then_some(member.name.as_str())
    };
    let names: Vec<_> = answers.iter().filter_map(writes).collect();
    (names.len() > 1).then_some(names)
}

fn state(answer: &Value) -> &str {
    match is_primary(answer) {
        true => "writes",
        false => text(answer, "state"),
    }
}

fn text<'a>(answer: &'a Value, name: &str) -> &'a str {
    answer.get(name).and_then(Value::as_str).unwrap_or("-")
}

fn code(answers: &[(&Member, Answer)]) -> u8 {
    let states = answers
        .iter()
        .map(|(_, answer)| answer.as_ref().map_or("out", state));
    let states: Vec<_> = states.collect();
    let is_out = |state: &&str| !matches!(*state, "in" | "writes" | "late" | "draining");
    if states.iter().any(is_out) || rivals(answers).is_some() {
        TARGET
    } else if states.contains(&"late") {
        LAG
    } else {
        0
    }
}

fn row(member: &Member, answer: &Answer) -> Vec<String> {
    let Ok(answer) = answer else {
        let mut row = vec![member.name.clone(), member.door.name().to_owned()];
        row.extend(["-", "no agent", "-", "-", "-", "-"].map(str::to_owned));
        return row;
    };
    let is_known = answer.get("staleness_known") == Some(&Value::Bool(true));
    let age = answer.get("staleness_ms").and_then(Value::as_f64);
    let staleness = match (is_primary(answer), age) {
        (true, _) | (_, None) => "-".to_owned(),
        (_, Some(ms)) if is_known => figures::seconds(ms),
        (_, Some(ms)) => format!("not known for {}", figures::seconds(ms)),
    };
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let share = number("share_percent").filter(|_| text(answer, "state") == "in");
    let shown = |number: Option<u64>, unit: &str| match number {
        Some(number) => format!("{number}{unit}"),
        None => "-".to_owned(),
    };
    vec![
        member.name.clone(),
        sanitize(text(answer, "door")),
        sanitize(text(answer, "role")),
        sanitize(state(answer)),
        staleness,
        shown(share, " %"),
        warm(answer).to_owned(),
        shown(number("sessions"), ""),
    ]
}

/// Whether a node that is in gets as much as the others; `rises` as long as it is new, or has just returned.
fn warm(answer: &Value) -> &'static str {
    match (text(answer, "state"), answer.get("risen")) {
        ("in", Some(Value::Bool(true))) => "yes",
        ("in", Some(Value::Bool(false))) => "rises",
        _ => "-",
    }
}

/// Why a node is not in.
fn why(answer: &Answer) -> Option<String> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(trouble) => return Some(format!("its agent cannot be asked: {}", sanitize(trouble))),
    };
    let why = answer.get("why").and_then(Value::as_str)?;
    let troubles = ["node_trouble", "primary_trouble"].into_iter();
    let troubles = troubles.filter_map(|name| answer.get(name)?.as_str());
    let words = std::iter::once(why).chain(troubles).collect::<Vec<_>>();
    (!is_primary(answer)).then(|| sanitize(&words.join("; ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use lockstep_pool::member::ServerPlace;
    use lockstep_pool::state::Door;
    use lockstep_service::address::HostPort;

    use super::*;

    fn member(name: &str) -> Member {
        let place = HostPort::parse("db:1").unwrap();
        Member {
            name: name.to_owned(),
            server: ServerPlace::Tcp(place.clone()),
            agent: place.clone(),
            agent_check: place,
            door: Door::Fresh,
        }
    }

    #[test]
    fn a_node_is_warm_once_its_share_has_risen() {
        for (state, risen, expected) in [
            ("in", json!(true), "yes"),
            ("in", json!(false), "rises"),
            ("late", json!(true), "-"),
            // An agent of an older version.
            ("in", Value::Null, "-"),
        ] {
            let answer = json!({"state": state, "risen": risen});
            assert_eq!(warm(&answer), expected, "{answer}");
        }
    }

    #[test]
    fn two_nodes_that_take_writes_are_an_error() {
        let (one, two) = (member("one"), member("two"));
        let said = |takes_writes: bool, state: &str| -> Answer {
            Ok(json!({"takes_writes": takes_writes, "state": state}))
        };
        let both = [(&one, said(true, "out")), (&two, said(true, "out"))];
        assert_eq!(rivals(&both).unwrap(), ["one", "two"]);
        assert_eq!(code(&both), TARGET);
        for (other, state) in [
            (said(false, "in"), "in"),
            (said(true, "draining"), "draining"),
        ] {
            let answers = [(&one, said(true, "out")), (&two, other)];
            assert_eq!((rivals(&answers), code(&answers)), (None, 0));
            assert_eq!(super::state(answers[1].1.as_ref().unwrap()), state);
        }
    }
}
