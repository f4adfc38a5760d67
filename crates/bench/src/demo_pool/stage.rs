//! What happens in the demo, and what clients see meanwhile.

use std::path::Path;
use std::thread;
use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_service::words::figures;

use super::CHECK_MS;
use crate::audience::Audience;
use crate::pool::clients::Reads;
use crate::pool::ledger::{Ledger, Read};
use crate::pool::newcomer;
use crate::pool::nodes::{AgentRules, Nodes};
use crate::pool::proxy::Proxy;
use crate::{BenchError, Result};

/// How many acts there are.
pub const ACTS: usize = 4;

/// Time between two lines while nothing else is said.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// How long a node may take until readers come to it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far the node falls behind.
const DELAY: &str = "5s";

/// The name of the new node.
pub const NEWCOMER: &str = "node4";

/// Everything that the acts use.
pub struct Stage<'a> {
    pub lab: &'a Lab,
    pub product: &'a Path,
    pub rules: &'a AgentRules,
    pub nodes: &'a mut Nodes,
    pub proxy: &'a mut Proxy,
    pub ledger: &'a Ledger,
    pub reads: &'a Reads,
    pub length: Duration,
    /// Each server's port and name.
    pub names: Vec<(u16, String)>,
}

#[derive(Debug, Clone)]
pub struct Act {
    pub title: String,
    /// Since the start.
    pub from: Duration,
    pub seen: Seen,
    /// Time from the trouble to the last new session on the node.
    pub gone_after: Option<Duration>,
    /// Time from the end of the trouble to the first new session on the node.
    pub back_after: Option<Duration>,
}

/// What clients saw in some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    pub reads: usize,
    pub failed: usize,
    pub oldest: Duration,
    /// Port of each server, and the reads that it answered.
    pub by_server: Vec<(u16, usize)>,
}

/// Sums up reads.
pub fn sum(reads: &[Read], failed: usize, ledger: &Ledger) -> Seen {
    let mut seen = Seen {
        reads: reads.len(),
        failed,
        ..Seen::default()
    };
    for read in reads {
        seen.oldest = seen.oldest.max(ledger.age(&read.seen, read.begun));
        match seen
            .by_server
            .iter_mut()
            .find(|(port, _)| *port == read.port)
        {
            Some((_, count)) => *count += 1,
            None => seen.by_server.push((read.port, 1)),
        }
    }
    seen.by_server.sort_unstable();
    seen
}

impl Stage<'_> {
    pub fn play(&mut self, audience: &mut dyn Audience) -> Result<Vec<Act>> {
        for (number, server) in self.nodes.servers.iter().enumerate() {
            let name = if number == 0 {
                "primary".to_owned()
            } else {
                server.id().name.clone()
            };
            self.names.push((server.port(), name));
        }
        // What they have in memory is what a new node is warmed with.
        for standby in self.nodes.servers.iter().skip(1) {
            standby.execute("SELECT sum(abalance) FROM pgbench_accounts")?;
        }
        Ok(vec![
            self.calm(audience)?,
            self.late(audience)?,
            self.killed(audience)?,
            self.added(audience)?,
        ])
    }

    fn calm(&mut self, audience: &mut dyn Audience) -> Result<Act> {
        let (title, from) = self.begin("all is well", audience);
        self.watch(self.length, audience)?;
        Ok(self.end(title, from, [None, None], audience))
    }

    fn late(&mut self, audience: &mut dyn Audience) -> Result<Act> {
        let (title, from) = self.begin(&format!("node1 falls behind by {DELAY}"), audience);
        let port = self.server(1)?.port();
        let set = format!("ALTER SYSTEM SET recovery_min_apply_delay = '{DELAY}'");
        self.server(1)?.execute(&set)?;
        self.server(1)?.reload()?;
        let trouble = self.ledger.now();
        self.watch(self.length, audience)?;
        let reset = "ALTER SYSTEM RESET recovery_min_apply_delay";
        self.server(1)?.execute(reset)?;
        self.server(1)?.reload()?;
        audience.say("  node1 replays without delay again");
        let times = self.until_back(port, trouble, audience)?;
        Ok(self.end(title, from, times, audience))
    }

    fn killed(&mut self, audience: &mut dyn Audience) -> Result<Act> {
        let (title, from) = self.begin("node2 is killed", audience);
        let port = self.server(2)?.port();
        self.server(2)?.kill()?;
        let trouble = self.ledger.now();
        self.watch(self.length, audience)?;
        self.server(2)?.start()?;
        audience.say("  node2 runs again");
        let times = self.until_back(port, trouble, audience)?;
        Ok(self.end(title, from, times, audience))
    }

    fn added(&mut self, audience: &mut dyn Audience) -> Result<Act> {
        let (title, from) = self.begin(&format!("{NEWCOMER} is added"), audience);
        let port = self.nodes.seat(self.lab, NEWCOMER)?;
        self.names.push((port, NEWCOMER.to_owned()));
        self.nodes
            .start_agent(self.lab, self.product, self.rules, NEWCOMER)?;
        self.add(audience)?;
        let [_, back] = self.until_back(port, from, audience)?;
        self.watch(self.length, audience)?;
        Ok(self.end(title, from, [None, back], audience))
    }

    /// Runs `lockstep pool add`, and tells what it says.
    fn add(&mut self, audience: &mut dyn Audience) -> Result<()> {
        audience.say(&format!("  lockstep pool add {NEWCOMER} --data … says:"));
        let socket = self.proxy.socket.display().to_string();
        let every = format!("{CHECK_MS}ms");
        newcomer::add(
            self.lab,
            self.product,
            self.nodes.seat_of(NEWCOMER)?,
            &self.proxy.file,
            &["--socket", &socket, "--check-every", &every],
            &[],
            &mut |line| audience.say(&format!("    {line}")),
        )
    }

    fn server(&mut self, number: usize) -> Result<&mut Server> {
        let missing = || BenchError::Unusable(format!("there is no node{number}"));
        self.nodes.servers.get_mut(number).ok_or_else(missing)
    }

    fn begin(&self, title: &str, audience: &mut dyn Audience) -> (String, Duration) {
        audience.begin(title);
        audience.say(&format!("{title}:"));
        (title.to_owned(), self.ledger.now())
    }

    fn end(
        &self,
        title: String,
        from: Duration,
        [gone_after, back_after]: [Option<Duration>; 2],
        audience: &mut dyn Audience,
    ) -> Act {
        let seen = self.seen_since(from);
        audience.end(&format!(
            "{} reads, {} failed, the oldest data {}",
            seen.reads,
            seen.failed,
            figures::ms(seen.oldest.as_secs_f64() * 1000.0)
        ));
        Act {
            title,
            from,
            seen,
            gone_after,
            back_after,
        }
    }

    fn seen_since(&self, from: Duration) -> Seen {
        let (reads, failures) = (self.reads.since(from), self.reads.failures());
        let failed = failures.iter().filter(|at| **at >= from).count();
        sum(&reads, failed, self.ledger)
    }

    /// Tells what clients see for this long.
    fn watch(&mut self, length: Duration, audience: &mut dyn Audience) -> Result<()> {
        let end = self.ledger.now() + length;
        while self.ledger.now() < end {
            self.proxy.check()?;
            let from = self.ledger.now();
            thread::sleep(LINE_EVERY.min(end.saturating_sub(from)));
            audience.say(&self.line(from));
        }
        Ok(())
    }

    /// What clients have seen since a moment, in one line.
    fn line(&self, from: Duration) -> String {
        let seen = self.seen_since(from);
        let seconds = (self.ledger.now() - from).as_secs_f64();
        let of = |port: &u16| {
            let found = seen.by_server.iter().find(|(of, _)| of == port);
            found.map_or(0.0, |(_, count)| *count as f64 / seconds)
        };
        let each = self
            .names
            .iter()
            .map(|(port, name)| format!("{name} {:.0}/s", of(port)));
        format!(
            "  {:>4.0} s  {}  oldest data {}  failed {}",
            self.ledger.now().as_secs_f64(),
            each.collect::<Vec<_>>().join("  "),
            figures::ms(seen.oldest.as_secs_f64() * 1000.0),
            seen.failed
        )
    }

    /// Waits until a new session has reached a server again, after what is over now. Returns how long
    /// sessions reached it after its trouble began, and after it was over.
    fn until_back(
        &mut self,
        port: u16,
        trouble: Duration,
        audience: &mut dyn Audience,
    ) -> Result<[Option<Duration>; 2]> {
        let over = self.ledger.now();
        let last = self.reads.since(trouble);
        let last = last
            .iter()
            .filter(|read| read.port == port)
            .map(|read| read.begun)
            .max();
        loop {
            let reads = self.reads.since(over);
            let back = reads
                .iter()
                .filter(|read| read.port == port)
                .map(|read| read.begun)
                .min();
            if let Some(back) = back {
                let after = back - over;
                let words = figures::ms(after.as_secs_f64() * 1000.0);
                audience.say(&format!("  readers reach it after {words}"));
                return Ok([last.map(|at| at - trouble), Some(after)]);
            }
            if self.ledger.now() > over + PATIENCE {
                let words = format!("no reader reached the node within {} s", PATIENCE.as_secs());
                return Err(BenchError::Unusable(words));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_summed_up_by_server() {
        let ledger = Ledger::new(1);
        ledger.acknowledge(0);
        let at = Duration::from_secs(10);
        let read = |port: u16, number: u64| Read {
            begun: at,
            asked: at,
            seen: vec![number],
            is_standby: true,
            port,
        };
        let seen = sum(&[read(2, 1), read(1, 1), read(2, 1)], 3, &ledger);
        assert_eq!((seen.reads, seen.failed), (3, 3));
        assert_eq!(seen.by_server, [(1, 1), (2, 2)]);
        assert_eq!(seen.oldest, Duration::ZERO);
        let missed = sum(&[read(1, 0)], 0, &ledger);
        assert!(missed.oldest > Duration::from_secs(9));
    }
}
