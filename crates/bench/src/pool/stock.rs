//! The checks that pools have without Lockstep, for HAProxy: its own `pgsql-check`, and Patroni's formula.
//!
//! Patroni calls a standby usable if the leader's position minus what the standby has replayed is no more
//! than `lag` bytes. Patroni knows the leader's position from its last loop, every 10 s by default. Here
//! that is asked for far more often, so the formula is at its best. A node that cannot reach the leader
//! keeps the position that it knew, as Patroni does.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::{Connection, Conninfo, Purpose, field};
use lockstep_lab::server::SUPERUSER;
use lockstep_wire::Lsn;

use super::nodes::Nodes;
use crate::{BenchError, Result};

/// Time between two questions to the leader.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long a server may take for an answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Patroni's formula for the standbys of a pool, each at a port of its own.
#[derive(Debug)]
pub struct Formula {
    pub ports: Vec<u16>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Formula {
    /// Answers 200 for a standby that lacks at most `most` bytes, 503 otherwise.
    pub fn start(nodes: &Nodes, most: u64) -> Result<Self> {
        let mut formula = Self {
            ports: Vec::new(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for (seat, server) in nodes.seats.iter().zip(&nodes.servers).skip(1) {
            let refused = BenchError::io("listen on", Path::new("127.0.0.1"));
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
            let place = listener.local_addr();
            let refused = BenchError::io("listen on", Path::new("127.0.0.1"));
            formula.ports.push(place.map_err(refused)?.port());
            let sockets = server.sockets().display();
            let leader = format!(
                "host={sockets} port={} user={SUPERUSER} dbname=postgres",
                seat.primary_port
            );
            let position = Arc::new(AtomicU64::new(0));
            let (shared, stop) = (Arc::clone(&position), Arc::clone(&formula.stop));
            let ask = move || watch_leader(&leader, &shared, &stop);
            formula.threads.push(thread::spawn(ask));
            let (own, stop) = (seat.conninfo.clone(), Arc::clone(&formula.stop));
            let answer = move || answer_all(&listener, &own, &position, most, &stop);
            formula.threads.push(thread::spawn(answer));
        }
        Ok(formula)
    }
}

impl Drop for Formula {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for port in &self.ports {
            // Wakes the thread that waits for a connection.
            let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, *port));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A position from a session that is opened anew after an error.
fn position(session: &mut Option<Connection>, conninfo: &str, sql: &str) -> Option<u64> {
    if session.is_none() {
        let conninfo = Conninfo::parse(conninfo).ok()?.with("connect_timeout", "2");
        let opened = Connection::connect(&conninfo.ok()?, Purpose::Sql, "bench check").ok();
        *session = opened.map(|mut session| {
            session.set_patience(PATIENCE);
            session
        });
    }
    let rows = session.as_mut()?.query(sql);
    let lsn = rows.ok().and_then(|rows| {
        let lsn: Lsn = field(rows.first()?, 0).ok()?;
        Some(u64::from(lsn))
    });
    if lsn.is_none() {
        *session = None;
    }
    lsn
}

fn watch_leader(conninfo: &str, known: &AtomicU64, stop: &AtomicBool) {
    let mut session = None;
    while !stop.load(Ordering::Relaxed) {
        let sql = "SELECT pg_current_wal_lsn()";
        if let Some(lsn) = position(&mut session, conninfo, sql) {
            known.store(lsn, Ordering::Relaxed);
        }
        thread::sleep(ASK_EVERY);
    }
}

fn answer_all(
    listener: &TcpListener,
    conninfo: &str,
    leader: &AtomicU64,
    most: u64,
    stop: &AtomicBool,
) {
    let mut session = None;
    while let Ok((stream, _)) = listener.accept() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let replayed = position(&mut session, conninfo, "SELECT pg_last_wal_replay_lsn()");
        let is_usable = usable(leader.load(Ordering::Relaxed), replayed, most);
        // HAProxy has asked again if it has gone.
        let _ = reply(stream, is_usable);
    }
}

/// Patroni's formula.
fn usable(leader: u64, replayed: Option<u64>, most: u64) -> bool {
    replayed.is_some_and(|replayed| leader.saturating_sub(replayed) <= most)
}

fn reply(mut stream: TcpStream, is_usable: bool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let lines = BufReader::new(stream.try_clone()?).lines();
    // Up to the end of the request's head.
    for line in lines.take(100) {
        if line?.is_empty() {
            break;
        }
    }
    let status = if is_usable {
        "200 OK"
    } else {
        "503 Service Unavailable"
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_decide() {
        assert!(usable(1000, Some(1000), 0));
        assert!(usable(1000, Some(2000), 0), "the leader is known late");
        assert!(usable(1000, Some(900), 100));
        assert!(!usable(1000, Some(899), 100));
        assert!(!usable(1000, None, u64::MAX));
    }
}
