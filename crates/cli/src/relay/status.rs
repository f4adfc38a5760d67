//! `lockstep relay status`: the answers of a relay's console, as tables or JSON.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstep_client::{ClientError, Connection, Purpose};
use lockstep_lag::nodes::console;
use lockstep_lag::states::GroupState;
use lockstep_relay::console::{SLOT_COLUMNS, UPSTREAM_COLUMNS};
use lockstep_service::exit::Failure;
use lockstep_service::words::lines;
use lockstep_service::words::output::{self, Output};
use lockstep_wire::backend::{Column, INT4, INT8};
use serde_json::{Map, Value, json};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// `lockstep relay status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// How to connect to the relay. Defaults are host=127.0.0.1 port=6543; the database is always
    /// lockstep
    #[arg(
        long,
        value_name = "CONNINFO",
        default_value = "",
        hide_default_value = true
    )]
    connect: String,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

pub fn run(args: &StatusArgs) -> Result<()> {
    let mut relay = Connection::connect(&console(&args.connect)?, Purpose::Sql, "lockstep status")
        .map_err(unreachable)?;
    relay.set_patience(PATIENCE);
    let upstream = Listing::ask(&mut relay, "SHOW UPSTREAM", &UPSTREAM_COLUMNS)?;
    let slots = Listing::ask(&mut relay, "SHOW SLOTS", &SLOT_COLUMNS)?;
    match args.output {
        Output::Json => {
            output::print(&json!({"upstream": upstream.json(), "slots": slots.json()}).to_string())
        }
        Output::Text => {
            let tables = [
                upstream.table(&[
                    "group",
                    "state",
                    "database",
                    "slot",
                    "primary",
                    "received_lsn",
                    "durable_lsn",
                    "transactions",
                ]),
                slots.table(&[
                    "name",
                    "group",
                    "active_pid",
                    "sent_lsn",
                    "confirmed_lsn",
                    "behind_bytes",
                    "cache_hit",
                    "cache_miss",
                    "hit_rate",
                ]),
            ];
            for (at, table) in tables.iter().enumerate() {
                if at > 0 {
                    output::print("");
                }
                for line in lines::table(table) {
                    output::print(&line);
                }
            }
        }
    }
    let behind = upstream.not_streaming();
    match behind.is_empty() {
        true => Ok(()),
        false => Err(Failure::Behind(behind.join("; ")).into()),
    }
}

/// Words for a connection to a relay: the client's own speak of a primary.
fn unreachable(error: ClientError) -> anyhow::Error {
    let words = match error {
        ClientError::Refused(refusal) => {
            let hint = refusal.hint.map(|hint| format!(" ({hint})"));
            format!(
                "the relay refuses: {}{}",
                refusal.message,
                hint.unwrap_or_default()
            )
        }
        ClientError::Connect(words) => words,
        ClientError::Ended(report) => {
            format!("the connection to the relay is lost: {}", report.message)
        }
        ClientError::Lost(words) => format!("the connection to the relay is lost: {words}"),
        ClientError::TimedOut { seconds, .. } => {
            format!("the relay does not answer within {seconds} s")
        }
        other => return other.into(),
    };
    Failure::Unreachable(words).into()
}

/// The answer to one command of the console.
struct Listing {
    columns: &'static [Column<'static>],
    rows: Vec<Vec<Option<String>>>,
}

impl Listing {
    fn ask(
        relay: &mut Connection,
        command: &str,
        columns: &'static [Column<'static>],
    ) -> Result<Self> {
        let rows = relay.query(command).map_err(unreachable)?;
        // The answer has no names of columns here: each is known by its place.
        if rows.iter().any(|row| row.len() != columns.len()) {
            let reason = "the relay answers with other columns: it is of another version than \
                          this lockstep, or no relay";
            return Err(Failure::Unreachable(reason.to_owned()).into());
        }
        Ok(Self { columns, rows })
    }

    /// The value of a row in a column.
    fn value<'a>(&self, row: &'a [Option<String>], name: &str) -> Option<&'a str> {
        let at = self.columns.iter().position(|column| column.name == name)?;
        row.get(at)?.as_deref()
    }

    fn json(&self) -> Vec<Value> {
        let object = |row: &Vec<Option<String>>| {
            let fields = self.columns.iter().zip(row);
            fields
                .map(|(column, value)| {
                    let value = value.as_deref();
                    let number = value
                        .filter(|_| matches!(column.kind, INT4 | INT8))
                        .and_then(|text| text.parse::<i64>().ok());
                    let value = match number {
                        Some(number) => Value::from(number),
                        None => Value::from(value),
                    };
                    (column.name.to_owned(), value)
                })
                .collect::<Map<_, _>>()
        };
        self.rows.iter().map(object).map(Value::Object).collect()
    }

    /// A table of some columns, with its heads.
    fn table(&self, names: &[&str]) -> Vec<Vec<String>> {
        let heads = names.iter().map(|name| name.replace('_', " ")).collect();
        let rows = self.rows.iter().map(|row| {
            names
                .iter()
                .map(|name| self.value(row, name).unwrap_or("-").to_owned())
                .collect()
        });
        std::iter::once(heads).chain(rows).collect()
    }

    /// The groups that do not stream, and why.
    fn not_streaming(&self) -> Vec<String> {
        self.rows
            .iter()
            .filter(|row| {
                let state = self.value(row, "state").map(GroupState::from);
                state != Some(GroupState::Streaming)
            })
            .map(|row| {
                let value = |name| self.value(row, name);
                let reason = value("reason").map(|reason| format!(": {reason}"));
                format!(
                    "group {} does not stream, it is {}{}",
                    value("group").unwrap_or_default(),
                    value("state").unwrap_or("in no state"),
                    reason.unwrap_or_default()
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crate lag reads consoles without linking the relay in, so it has its own list.
    #[test]
    fn lag_knows_the_states_of_the_relay() {
        let known: Vec<&str> = GroupState::KNOWN.iter().map(GroupState::name).collect();
        assert_eq!(
            known,
            lockstep_relay::stats::GroupState::ALL.map(|state| state.name())
        );
    }
}
