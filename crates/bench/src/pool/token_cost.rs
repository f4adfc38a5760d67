//! What tokens cost the primary: one load, while they are turned off and on in turn.
//!
//! Runs one after another differ by more than the cost, so all is measured in one: rounds of six short turns,
//! off, on, off, off, on, off. What changes evenly with time hits both alike. The turns without tokens are
//! halved, and the halves compared, too: they differ by chance alone. The server's CPU for each transaction
//! is measured as well: on a busy machine it says more than how many there are.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::Connection;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_lab::workload::Workload;

use super::tokens::{CLIENTS, settings};
use crate::fleet::Cpu;
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

/// A figure in the turns of a round.
#[derive(Debug, Clone, Copy, Default)]
struct Turns {
    with: f64,
    without: f64,
    without_again: f64,
}

impl Turns {
    /// Adds the figure of a turn; each has two in a round.
    fn add(&mut self, turn: Turn, figure: f64) {
        let sum = match turn {
            Turn::With => &mut self.with,
            Turn::Without => &mut self.without,
            Turn::WithoutAgain => &mut self.without_again,
        };
        *sum += figure / 2.0;
    }

    /// What tokens add to the figure, in percent.
    fn added(&self) -> f64 {
        200.0 * self.with / (self.without + self.without_again) - 100.0
    }

    /// What one half without tokens has more than the other, in percent.
    fn by_chance(&self) -> f64 {
        100.0 * self.without_again / self.without - 100.0
    }
}

/// Transactions a second, and seconds of CPU that the server takes for each.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    tps: Turns,
    cpu: Turns,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub seconds: f64,
    /// Transactions a second with tokens.
    pub tps: f64,
    /// Transactions that tokens cost, in percent: the median of the rounds.
    pub tps_percent: f64,
    /// Difference between the two halves without tokens, in percent.
    pub tps_by_chance: f64,
    /// CPU that each transaction takes more, in percent.
    pub cpu_percent: f64,
    pub cpu_by_chance: f64,
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
        rounds.push(round(&primary, &mut session)?);
    }
    let seconds = began.elapsed().as_secs_f64();
    drop((load, session));
    primary.remove()?;
    Ok(summary(&rounds, seconds))
}

fn round(primary: &Server, session: &mut Connection) -> Result<Round> {
    let mut round = Round::default();
    for turn in ROUND {
        let (tps, cpu) = measured(primary, session, turn == Turn::With)?;
        round.tps.add(turn, tps);
        round.cpu.add(turn, cpu);
    }
    Ok(round)
}

/// Transactions a second in one turn, and the CPU of each: each of the load's has one number.
fn measured(primary: &Server, session: &mut Connection, with_tokens: bool) -> Result<(f64, f64)> {
    let value = if with_tokens { "on" } else { "off" };
    for sql in [
        &format!("ALTER SYSTEM SET lockstep.report_token = {value}"),
        "SELECT pg_reload_conf()",
    ] {
        session.execute(sql).map_err(failed)?;
    }
    thread::sleep(LEARN);
    let (from, cpu, began) = (next_number(session)?, Cpu::of(primary)?, Instant::now());
    thread::sleep(TURN);
    let (to, seconds) = (next_number(session)?, began.elapsed().as_secs_f64());
    let used = Cpu::of(primary)?.since(&cpu, |_| true);
    Ok(((to - from) / seconds, used / (to - from).max(1.0)))
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
    let middle = |part: fn(&Round) -> f64| median(rounds.iter().map(part)).unwrap_or_default();
    Cost {
        seconds,
        tps: middle(|round| round.tps.with),
        tps_percent: middle(|round| -round.tps.added()),
        tps_by_chance: middle(|round| -round.tps.by_chance()),
        cpu_percent: middle(|round| round.cpu.added()),
        cpu_by_chance: middle(|round| round.cpu.by_chance()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_costs_nothing_and_tokens_do() {
        // A load that slows down evenly, of which tokens take a part.
        let mut tps = 1000.0;
        let mut drifting = |share: f64| {
            let mut round = Round::default();
            for turn in ROUND {
                let share = if turn == Turn::With { share } else { 1.0 };
                round.tps.add(turn, tps * share);
                round.cpu.add(turn, tps / share);
                tps -= 10.0;
            }
            round
        };
        let free = summary(&[drifting(1.0), drifting(1.0), drifting(1.0)], 9.0);
        assert!(free.tps_percent.abs() < 1e-9 && free.tps_by_chance.abs() < 1e-9);
        let costly = summary(&[drifting(0.8)], 3.0);
        assert!((costly.tps_percent - 20.0).abs() < 1e-9, "{costly:?}");
        assert!((costly.cpu_percent - 25.0).abs() < 1e-9, "{costly:?}");
        assert!(costly.cpu_by_chance.abs() < 1e-9, "{costly:?}");
    }
}
