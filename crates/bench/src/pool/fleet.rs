//! What the agents of many small nodes, and the HAProxy before them, cost.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::settings_of;
use lockstep_lab::workload::Workload;

use super::newcomer::percentile;
use super::nodes::{AgentRules, Nodes, small};
use super::proxy::{Checks, Proxy};
use crate::fleet::{Cpu, sessions};
use crate::{BenchError, Result};

/// The agents' sessions.
const APPLICATION_NAME: &str = "lockstep pool agent";

/// Time between two checks of HAProxy, in milliseconds, and transactions a second on the primary: the load
/// makes every position that an agent asks for a new one.
const CHECK_MS: u32 = 500;
const TPS: f64 = 20.0;

/// Checks whose answers are timed, and what each asks.
const CHECKS: usize = 2000;
const CHECK: &[u8] = b"OPTIONS /pool/fresh HTTP/1.0\r\n\r\n";

/// Percent of a core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    pub seconds: f64,
    /// All agents together.
    pub agents: f64,
    /// The agents' sessions on the primary.
    pub on_primary: f64,
    /// The agents' sessions on the standby where they take most.
    pub on_standby: f64,
    pub proxy: f64,
    /// Milliseconds until an agent has answered a check: the median, and the 99th percentile.
    pub answer_ms: [f64; 2],
}

/// Measures a primary with this many standbys.
pub fn run(lab: &Lab, product: &Path, standbys: usize, length: Duration) -> Result<Costs> {
    let mut settings = small(standbys);
    settings.extend(settings_of([
        ("shared_buffers", "16MB"),
        ("max_connections", "60"),
    ]));
    let mut nodes = Nodes::start(lab, standbys, &settings, 1, false)?;
    lab.load_data(nodes.primary()?, 1)?;
    let rules = AgentRules {
        bound: "1s",
        settle: "2s",
        rise: "1s",
    };
    nodes.start_agents(lab, product, &rules)?;
    let checks = Checks::Agents {
        product,
        when_all_late: "freshest",
    };
    let mut proxy = Proxy::start(lab, &nodes, checks, CHECK_MS)?;
    let load = lab.start_paced_load(
        nodes.primary()?,
        Side::Both,
        Workload::TpcB,
        2,
        1,
        Some(TPS),
    )?;
    proxy.await_readers(standbys)?;
    let own: Vec<_> = (nodes.servers.iter())
        .map(|server| sessions(server, APPLICATION_NAME))
        .collect::<Result<_>>()?;
    let cpu = |nodes: &Nodes| {
        nodes
            .servers
            .iter()
            .map(Cpu::of)
            .collect::<Result<Vec<_>>>()
    };
    let (before, began) = (cpu(&nodes)?, Instant::now());
    let (agents, haproxy) = (nodes.agents_cpu_s(), proxy.cpu_s());
    thread::sleep(length);
    let (after, seconds) = (cpu(&nodes)?, began.elapsed().as_secs_f64());
    let (agents, haproxy) = (nodes.agents_cpu_s() - agents, proxy.cpu_s() - haproxy);
    let percent = |cpu_s: f64| 100.0 * cpu_s / seconds;
    let used: Vec<f64> = (after.iter().zip(&before).zip(&own))
        .map(|((after, before), own)| percent(after.since(before, |pid| own.contains(&pid))))
        .collect();
    let answer_ms = answers(&nodes)?;
    let costs = Costs {
        seconds,
        agents: percent(agents),
        on_primary: used.first().copied().unwrap_or_default(),
        on_standby: used.iter().skip(1).copied().fold(0.0, f64::max),
        proxy: percent(haproxy),
        answer_ms,
    };
    proxy.check()?;
    nodes.check_agents()?;
    drop((load, proxy));
    nodes.remove()?;
    Ok(costs)
}

/// Asks all agents in turn as HAProxy does, one after the other.
fn answers(nodes: &Nodes) -> Result<[f64; 2]> {
    let asked = nodes.seats.iter().cycle().take(CHECKS);
    let times = asked.map(|seat| answer_ms(&seat.agent_place()));
    let times: Vec<f64> = times
        .collect::<std::io::Result<_>>()
        .map_err(|error| BenchError::Unusable(format!("an agent gave no answer: {error}")))?;
    Ok([50, 99].map(|part| percentile(times.clone(), part)))
}

/// Milliseconds from a check, on a connection that is open, to its answer.
fn answer_ms(agent: &str) -> std::io::Result<f64> {
    let mut stream = TcpStream::connect(agent)?;
    let asked = Instant::now();
    stream.write_all(CHECK)?;
    let mut answer = [0; 64];
    match stream.read(&mut answer)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(asked.elapsed().as_secs_f64() * 1000.0),
    }
}
