//! `lockstep pool status`: asks all agents at once.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_pool::ask::Asking;
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

type Answer = Result<Value, String>;

/// Prints what the agents say.
pub fn run(args: &StatusArgs) -> Result<ExitCode> {
    let members = args.members.members()?;
    let asking = Asking::open(args.login_file.as_deref(), args.agent_ca.as_deref())
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let answers: Vec<(&Member, Answer)> = std::thread::scope(|scope| {
        let asked = members.iter().map(|member| {
            let asking = &asking;
            (member, scope.spawn(move || asking.ask(&member.agent)))
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
    });
    match args.output {
        Output::Text => {
            let heads = [
                "node",
                "door",
                "role",
                "state",
                "staleness",
                "share",
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
        }
        Output::Json => {
            let nodes = answers.iter().map(|(member, answer)| {
                json!({
                    "node": member.name,
                    "agent": member.agent.to_string(),
                    "door": member.door.name(),
                    "answer": answer.as_ref().ok(),
                    "trouble": answer.as_ref().err(),
                })
            });
            let nodes: Vec<_> = nodes.collect();
            output::print(&json!({"schema": 1, "nodes": nodes}).to_string());
        }
    }
    Ok(ExitCode::from(code(&answers)))
}

fn is_primary(answer: &Value) -> bool {
    answer.get("takes_writes") == Some(&Value::Bool(true))
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
    if states.iter().any(is_out) {
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
        row.extend(["-", "no agent", "-", "-", "-"].map(str::to_owned));
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
        shown(number("sessions"), ""),
    ]
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
