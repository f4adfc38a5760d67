//! What the agents of many small nodes, and the HAProxy before them, cost.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::settings_of;
use lockstep_lab::workload::Workload;

use super::nodes::{AgentRules, Nodes, small};
use super::proxy::{Checks, Proxy};
use crate::Result;
use crate::fleet::{Cpu, sessions};

/// The agents' sessions.
const APPLICATION_NAME: &str = "lockstep pool agent";

/// Time between two checks of HAProxy, in milliseconds, and transactions a second on the primary: the load
/// makes every position that an agent asks for a new one.
const CHECK_MS: u32 = 500;
const TPS: f64 = 20.0;

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
    let percent = |cpu_s: f64| 100.0 * cpu_s / seconds;
    let used: Vec<f64> = (after.iter().zip(&before).zip(&own))
        .map(|((after, before), own)| percent(after.since(before, |pid| own.contains(&pid))))
        .collect();
    let costs = Costs {
        seconds,
        agents: percent(nodes.agents_cpu_s() - agents),
        on_primary: used.first().copied().unwrap_or_default(),
        on_standby: used.iter().skip(1).copied().fold(0.0, f64::max),
        proxy: percent(proxy.cpu_s() - haproxy),
    };
    proxy.check()?;
    nodes.check_agents()?;
    drop((load, proxy));
    nodes.remove()?;
    Ok(costs)
}
