//! What tokens cost the primary: one load, while they are turned off and on in turn.
//!
//! Runs one after another differ by more than the cost, so all is measured in one: rounds of six short turns,
//! off, on, off, off, on, off. What changes evenly with time hits both alike. The turns without tokens are
//! halved, and the halves compared, too: they differ by chance alone.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::Connection;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::SUPERUSER;
use lockstep_lab::workload::Workload;

use super::tokens::{CLIENTS, settings};
use crate::replay_lag::median;
use crate::{BenchError, Result};

/// pgbench's scale, and its load before it is measured.
const SCALE: u32 = 20;
const WARMUP: Duration = Duration::from_secs(5);

/// Length of a turn, and the time before it in which all sessions learn of it.
const TURN: Duration = Duration::from_millis(500);
const LEARN: Duration = Duration::from_millis(50);

/// What is measured in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    With,
    Without,
    WithoutAgain,
}

const ROUND: [Turn; 6] = [
    Turn::Without,
    Turn::With,
    Turn::WithoutAgain,
    Turn::WithoutAgain,
    Turn::With,
    Turn::Without,
];

/// Transactions a second in the turns of a round.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    with: f64,
    without: f64,
    without_again: f64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub seconds: f64,
    /// Transactions a second with tokens.
    pub tps: f64,
    /// Transactions that tokens cost, in percent: the median of the rounds.
    pub percent: f64,
    /// Difference between the two halves without tokens, in percent.
    pub percent_by_chance: f64,
}

/// Measures for about this long on a new primary.
pub fn run(lab: &Lab, length: Duration) -> Result<Cost> {
    let primary = lab.primary("writes", None, &settings())?;
    lab.create_app_role(&primary)?;
    lab.load_data(&primary, SCALE)?;
    let clients = u32::try_from(CLIENTS).unwrap_or(u32::MAX);
    let load = lab.start_load(&primary, Side::Primary, Workload::TpcB, clients, SCALE)?;
    let mut session = primary.connect(SUPERUSER, "bench pool")?;
    thread::sleep(WARMUP);
    let (began, mut rounds) = (Instant::now(), Vec::new());
    while rounds.is_empty() || began.elapsed() < length {
        rounds.push(round(&mut session)?);
    }
    let seconds = began.elapsed().as_secs_f64();
    drop((load, session));
    primary.remove()?;
    Ok(summary(&rounds, seconds))
}

fn round(session: &mut Connection) -> Result<Round> {
    let mut round = Round::default();
    for turn in ROUND {
        let tps = turn_tps(session, turn == Turn::With)?;
        let sum = match turn {
            Turn::With => &mut round.with,
            Turn::Without => &mut round.without,
            Turn::WithoutAgain => &mut round.without_again,
        };
        // Each has two turns.
        *sum += tps / 2.0;
    }
    Ok(round)
}

/// Transactions a second in one turn: each of the load's has one number.
fn turn_tps(session: &mut Connection, with_tokens: bool) -> Result<f64> {
    let value = if with_tokens { "on" } else { "off" };
    for sql in [
        &format!("ALTER SYSTEM SET lockstep.report_token = {value}"),
        "SELECT pg_reload_conf()",
    ] {
        session.execute(sql).map_err(failed)?;
    }
    thread::sleep(LEARN);
    let (from, began) = (next_number(session)?, Instant::now());
    thread::sleep(TURN);
    let (to, seconds) = (next_number(session)?, began.elapsed().as_secs_f64());
    Ok((to - from) / seconds)
}

fn next_number(session: &mut Connection) -> Result<f64> {
    let rows = session
        .query("SELECT pg_snapshot_xmax(pg_current_snapshot())")
        .map_err(failed)?;
    let field = rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().next());
    let number = field.flatten().and_then(|text| text.parse().ok());
    number
        .ok_or_else(|| BenchError::Unusable("the server tells no transaction's number".to_owned()))
}

fn failed(error: lockstep_client::ClientError) -> BenchError {
    BenchError::Unusable(format!("the primary cannot be asked: {error}"))
}

fn summary(rounds: &[Round], seconds: f64) -> Cost {
    let percents = |part: fn(&Round) -> f64| median(rounds.iter().map(part)).unwrap_or_default();
    Cost {
        seconds,
        tps: percents(|round| round.with),
        percent: percents(|round| {
            100.0 - 200.0 * round.with / (round.without + round.without_again)
        }),
        percent_by_chance: percents(|round| 100.0 - 100.0 * round.without_again / round.without),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_costs_nothing_and_tokens_do() {
        // A load that slows down evenly, of which tokens take a tenth.
        let mut tps = 1000.0;
        let mut drifting = |share: f64| {
            let mut round = Round::default();
            for turn in ROUND {
                let (sum, share) = match turn {
                    Turn::With => (&mut round.with, share),
                    Turn::Without => (&mut round.without, 1.0),
                    Turn::WithoutAgain => (&mut round.without_again, 1.0),
                };
                *sum += tps * share / 2.0;
                tps -= 10.0;
            }
            round
        };
        let free = summary(&[drifting(1.0), drifting(1.0), drifting(1.0)], 9.0);
        assert!(free.percent.abs() < 1e-9 && free.percent_by_chance.abs() < 1e-9);
        let costly = summary(&[drifting(0.9)], 3.0);
        assert!((costly.percent - 10.0).abs() < 1e-9, "{costly:?}");
        assert!(costly.percent_by_chance.abs() < 1e-9, "{costly:?}");
    }
}
