//! HAProxy's runtime socket, as far as a switchover needs it: new sessions of a back end wait in HAProxy's
//! queue for a while, and are then led to another server.
//!
//! HAProxy lets sessions wait only for a server that takes some and is full. So a server of this module's
//! own, [`WAITS`], is added to the back end. It leads to the source, takes one session, and that one is ours:
//! a connection through the front end that never logs in. The source's server takes no new sessions then, and
//! those that are open end with the fence. No setting of a server is changed that would have to be known to
//! take it back (a limit that a server without one is given is never reached), and that [`WAITS`] is there
//! says that clients may wait, after a kill, too. All of it lasts until HAProxy is reloaded.
//!
//! If this process is killed, its session ends, and those who wait come to the source one after the other:
//! they read there, and cannot write once it is fenced.
//!
//! What is said to HAProxy is decided without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_pool::runtime::{Runtime, RuntimeError, StatRow, read_rows};
use lockstep_service::address::HostPort;
use lockstep_service::words::span;

use crate::error::{Finding, ReplicaError, Result, Severity};
use crate::names::named;

/// The server for which new sessions wait.
pub(crate) const WAITS: &str = "lockstep-waits";

/// Longest time until HAProxy has looked at the target and lets sessions through.
const LED_WITHIN: Duration = Duration::from_secs(10);

/// Longest time until the one session of [`WAITS`] is there: it waits if a client was faster.
const HELD_WITHIN: Duration = Duration::from_millis(300);

/// Longest wait for sessions that end by themselves. Others end with the fence.
const ENDED_WITHIN: Duration = Duration::from_millis(200);

/// Longest wait until a server has taken those who wait.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// Limit of sessions of a server without one while it takes those who wait.
const MANY: u64 = 1_000_000;

/// Longest wait for sessions that HAProxy was told to end.
const CUT_WITHIN: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The message with which a client asks for TLS, before it logs in.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// What leads clients to the source, and is to lead them to the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaProxy {
    /// The runtime socket.
    pub socket: PathBuf,
    /// Where clients connect.
    pub address: HostPort,
    pub backend: String,
    /// The back end's server that is the source.
    pub old: String,
    /// The one that is the target.
    pub new: String,
}

/// An HAProxy in the middle of a switchover.
#[derive(Debug)]
pub(super) struct Proxied {
    pub options: HaProxy,
    /// The session of [`WAITS`].
    held: Option<TcpStream>,
}

/// A server of a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Present {
    pub takes_sessions: bool,
    pub sessions: u64,
    /// Most sessions; None if there is no limit.
    pub limit: Option<u64>,
}

impl Present {
    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.sessions >= limit)
    }
}

/// What HAProxy says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// HAProxy's own, such as `2.6.12-1+deb12u4`.
    pub version: String,
    /// What a user of the socket may do.
    pub level: String,
    pub backends: BTreeSet<String>,
    /// Sessions that wait in the back end's queue.
    pub queued: u64,
    /// The servers of the back end.
    pub servers: BTreeMap<String, Present>,
    /// Address of each; none for a socket.
    pub places: BTreeMap<String, SocketAddr>,
}

/// How versions of HAProxy begin with which this was tried.
const TRIED: [&str; 2] = ["2.", "3."];

/// Where a server of HAProxy leads, as somebody who connected there has found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leads {
    Right,
    /// To another server.
    Wrong,
    /// HAProxy does not say where, or it cannot be asked.
    Unknown(String),
}

fn failed(error: &RuntimeError) -> ReplicaError {
    ReplicaError::State(error.to_string())
}

/// Where each server of a back end is, out of the answer to `show servers state`.
fn places(text: &str) -> BTreeMap<String, SocketAddr> {
    let mut lines = text.lines();
    let head = lines.find_map(|line| line.strip_prefix("# "));
    let head: Vec<_> = head.unwrap_or_default().split(' ').collect();
    let place = |name: &str| head.iter().position(|found| *found == name);
    let (name, address, port) = (place("srv_name"), place("srv_addr"), place("srv_port"));
    let found = lines.filter_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let field = |place: Option<usize>| fields.get(place?).copied();
        let address: IpAddr = field(address)?.parse().ok()?;
        let at = SocketAddr::new(address, field(port)?.parse().ok()?);
        (!address.is_unspecified()).then_some((field(name)?.to_owned(), at))
    });
    found.collect()
}

/// HAProxy's version, out of its answer to `show info`.
fn version(info: &str) -> &str {
    let mut lines = info.lines();
    let version = lines.find_map(|line| line.strip_prefix("Version:"));
    version.unwrap_or_default().trim()
}

/// What HAProxy has, out of its answers to `show info`, `show stat`, `show servers state` and
/// `show cli level`.
fn shown(options: &HaProxy, info: &str, rows: &[StatRow], [state, level]: [&str; 2]) -> Shown {
    let is_server = |row: &&StatRow| {
        row.proxy == options.backend && !matches!(row.name.as_str(), "FRONTEND" | "BACKEND")
    };
    let present = |row: &StatRow| Present {
        takes_sessions: row.status.starts_with("UP") || row.status == "no check",
        sessions: row.sessions,
        limit: row.limit.filter(|limit| *limit < MANY),
    };
    let backends = rows.iter().filter(|row| row.name == "BACKEND");
    let servers = rows.iter().filter(is_server);
    Shown {
        version: version(info).to_owned(),
        level: level.trim().to_owned(),
        queued: (backends.clone())
            .filter(|row| row.proxy == options.backend)
            .map(|row| row.queued)
            .sum(),
        backends: backends.map(|row| row.proxy.clone()).collect(),
        servers: servers
            .map(|row| (row.name.clone(), present(row)))
            .collect(),
        places: places(state),
    }
}

/// What adds [`WAITS`], which takes no sessions at first.
fn adding(options: &HaProxy, place: SocketAddr) -> String {
    format!("add server {}/{WAITS} {place} maxconn 1", options.backend)
}

/// What lets new sessions wait, once [`WAITS`] has its one. A session that begins between both commands
/// reaches the source.
fn pausing(options: &HaProxy) -> [String; 2] {
    let HaProxy { backend, old, .. } = options;
    [
        format!("set server {backend}/{WAITS} state ready"),
        format!("set server {backend}/{old} state drain"),
    ]
}

/// What leads those who wait to the target, and ends sessions that still lead to the source.
fn leading(options: &HaProxy) -> [String; 2] {
    let HaProxy { backend, old, .. } = options;
    [
        format!("set server {backend}/{old} state maint"),
        format!("shutdown sessions server {backend}/{old}"),
    ]
}

/// What lets a server take those who wait, as many as there is room for. HAProxy looks at its queue when it
/// is told a server's limit: from 3.2 on not for a server that becomes ready without one, before that not
/// for one that leaves `drain`. It takes some at a time, so this is repeated while somebody waits.
fn taking(options: &HaProxy, server: &str, limit: Option<u64>) -> String {
    let limit = limit.unwrap_or(MANY);
    format!("set maxconn server {}/{server} {limit}", options.backend)
}

/// What takes that limit away, of a server that had none.
fn unlimited(options: &HaProxy, server: &str) -> String {
    format!("set maxconn server {}/{server} 0", options.backend)
}

/// What lets new sessions reach the source again. Those who begin meanwhile wait for [`WAITS`], or take its
/// place.
fn taking_back(options: &HaProxy) -> [String; 2] {
    let HaProxy { backend, old, .. } = options;
    [WAITS, old.as_str()].map(|server| format!("set server {backend}/{server} state ready"))
}

/// What ends the session of [`WAITS`], before it is deleted.
fn emptying(options: &HaProxy) -> [String; 2] {
    let backend = &options.backend;
    [
        format!("set server {backend}/{WAITS} state maint"),
        format!("shutdown sessions server {backend}/{WAITS}"),
    ]
}

/// What lets those who wait go on to the source, for somebody at the runtime socket. A limit of the source's
/// server comes back when HAProxy is reloaded.
pub(super) fn by_hand(options: &HaProxy) -> String {
    let deleted = format!("del server {}/{WAITS}", options.backend);
    let commands = (taking_back(options).into_iter())
        .chain([taking(options, &options.old, None)])
        .chain(emptying(options))
        .chain([deleted]);
    commands.collect::<Vec<_>>().join("; ")
}

fn finding(severity: Severity, says: String, todo: &str) -> Finding {
    Finding {
        severity,
        subject: "HAProxy".to_owned(),
        says,
        todo: todo.to_owned(),
    }
}

/// What would make a switchover fail, or lead clients astray. `leads` is of the old server and of the new
/// one; `refused` is what HAProxy said when [`WAITS`] was to be added.
pub(super) fn findings(
    options: &HaProxy,
    shown: &Shown,
    leads: &[Leads; 2],
    refused: Option<String>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |says: String, todo: &str| found.push(finding(Severity::Error, says, todo));
    let backend = &options.backend;
    if !TRIED.iter().any(|tried| shown.version.starts_with(tried)) {
        let words = format!(
            "it is version {}, and only {} were seen to lead clients that wait to another server",
            shown.version,
            TRIED.map(|tried| format!("{tried}x")).join(" and ")
        );
        add(words, "lead clients by a command of yours: --on-switch");
    }
    if shown.level != "admin" {
        let words = format!("its socket allows only what level {} may do", shown.level);
        add(words, "write `level admin` behind `stats socket`");
    }
    if !shown.backends.contains(backend) {
        let names: Vec<_> = shown.backends.iter().cloned().collect();
        let words = format!("it has no back end {backend}: it has {}", named(&names));
        add(words, "name it with --haproxy-backend");
        return found;
    }
    if let Some(words) = refused {
        add(
            format!(
                "a server for which clients wait cannot be added to back end {backend}: {words}"
            ),
            "let it balance by roundrobin, leastconn, first or random",
        );
    }
    if shown.servers.contains_key(WAITS) {
        add(
            format!("back end {backend} has server {WAITS} of another switchover"),
            &format!(
                "if that is over, delete it in the runtime socket: {}; del server {backend}/{WAITS}",
                emptying(options).join("; ")
            ),
        );
    }
    let roles = [
        (&options.old, "source", true),
        (&options.new, "target", false),
    ];
    for (role, leads) in roles.into_iter().zip(leads) {
        found.extend(of_server(backend, shown, role, leads));
    }
    found.extend(of_others(options, shown));
    found
}

/// What is wrong with a server, which takes sessions now if it is the source.
fn of_server(
    backend: &str,
    shown: &Shown,
    (name, role, is_source): (&String, &str, bool),
    leads: &Leads,
) -> Vec<Finding> {
    let todo = "see --haproxy-servers: the source's comes first";
    let Some(present) = shown.servers.get(name) else {
        let names: Vec<_> = shown.servers.keys().cloned().collect();
        let names = named(&names);
        let words = format!("back end {backend} has no server {name}: it has {names}");
        return vec![finding(Severity::Error, words, todo)];
    };
    let leads = match leads {
        Leads::Right => None,
        Leads::Wrong => {
            let words = format!("server {name} of back end {backend} is not the {role}");
            Some(finding(Severity::Error, words, todo))
        }
        Leads::Unknown(why) => {
            let words = format!(
                "whether server {name} of back end {backend} is the {role} cannot be told ({why})"
            );
            let todo = "give it an address, and let this machine connect there";
            Some(finding(Severity::Error, words, todo))
        }
    };
    let takes = match (present.takes_sessions, is_source) {
        (false, true) => Some(finding(
            Severity::Error,
            format!("server {name} takes no sessions"),
            "clients do not come this way to the source: see --haproxy-backend",
        )),
        (true, false) => Some(finding(
            Severity::Error,
            format!("server {name} takes sessions before the target is open"),
            "write `disabled` into its line, and let HAProxy set it to maint: set server … state maint",
        )),
        _ => None,
    };
    leads.into_iter().chain(takes).collect()
}

/// Servers that would take sessions beside the target.
fn of_others(options: &HaProxy, shown: &Shown) -> Option<Finding> {
    let HaProxy {
        backend, old, new, ..
    } = options;
    let are_known = [old, new].iter().all(|it| shown.servers.contains_key(*it));
    let is_other = |(name, present): &(&String, &Present)| {
        present.takes_sessions && ![old.as_str(), new.as_str(), WAITS].contains(&name.as_str())
    };
    let others = shown.servers.iter().filter(is_other);
    let others: Vec<_> = others.map(|(name, _)| name.clone()).collect();
    (are_known && !others.is_empty()).then(|| {
        finding(
            Severity::Error,
            format!(
                "back end {backend} leads to other servers, too: {}",
                named(&others)
            ),
            "take them out of it: clients would be led there afterwards",
        )
    })
}

/// A session through a front end that never logs in. It waits, and that is an error, if there is no place
/// for it.
fn held(address: &HostPort, patience: Duration) -> io::Result<TcpStream> {
    let patience = patience.max(Duration::from_millis(1));
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for at in (address.host.as_str(), address.port).to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&at, patience) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&TLS_REQUEST)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        return match answer {
            [b'S' | b'N'] => Ok(stream),
            _ => Err(io::Error::other("no PostgreSQL answers")),
        };
    }
    Err(last)
}

impl Proxied {
    pub(super) fn new(options: &HaProxy) -> Self {
        Self {
            options: options.clone(),
            held: None,
        }
    }

    fn runtime(&self) -> Runtime {
        Runtime {
            socket: self.options.socket.clone(),
        }
    }

    fn ask(&self, command: &str) -> Result<String> {
        self.runtime().ask(command).map_err(|error| failed(&error))
    }

    fn tell(&self, commands: &[String]) -> Result<()> {
        let told = self.runtime().tell(&commands.join("; "));
        told.map_err(|error| failed(&error))
    }

    /// What HAProxy has.
    pub(super) fn look(&self) -> Result<Shown> {
        let rows = read_rows(&self.ask("show stat -1 7 -1")?).map_err(|error| failed(&error))?;
        let state = self.ask(&format!("show servers state {}", self.options.backend))?;
        let level = self.ask("show cli level")?;
        let info = self.ask("show info")?;
        Ok(shown(&self.options, &info, &rows, [&state, &level]))
    }

    /// A server of the back end, and how many sessions wait.
    fn server(&self, name: &str) -> Result<(Option<Present>, u64)> {
        let rows = read_rows(&self.ask("show stat -1 6 -1")?).map_err(|error| failed(&error))?;
        let mut shown = shown(&self.options, "", &rows, ["", ""]);
        Ok((shown.servers.remove(name), shown.queued))
    }

    /// Lets a server take those who wait, as many as there is room for.
    fn take_waiting(&self, name: &str) -> Result<()> {
        let began = Instant::now();
        let mut is_limited = false;
        while let (Some(server), 1..) = self.server(name)? {
            if server.is_full() || began.elapsed() >= TAKEN_WITHIN {
                break;
            }
            self.tell(&[taking(&self.options, name, server.limit)])?;
            is_limited |= server.limit.is_none();
            thread::sleep(LOOK_EVERY);
        }
        match is_limited {
            true => self.tell(&[unlimited(&self.options, name)]),
            false => Ok(()),
        }
    }

    /// Why [`WAITS`] cannot be added, in HAProxy's words. It takes no sessions while it is there.
    pub(super) fn refuses(&self, shown: &Shown) -> Result<Option<String>> {
        let is_there = shown.servers.contains_key(WAITS);
        let Some(place) = shown.places.get(&self.options.old).filter(|_| !is_there) else {
            return Ok(None);
        };
        let words = self.add(*place)?;
        match words {
            None => self.delete(CUT_WITHIN),
            words => Ok(words),
        }
    }

    fn add(&self, place: SocketAddr) -> Result<Option<String>> {
        let words = self.ask(&adding(&self.options, place))?;
        let words = words.trim();
        Ok((words != "New server registered.").then(|| words.to_owned()))
    }

    /// Deletes [`WAITS`], which takes no sessions; HAProxy's words if it does not within `patience`.
    fn delete(&self, patience: Duration) -> Result<Option<String>> {
        let command = format!("del server {}/{WAITS}", self.options.backend);
        let began = Instant::now();
        loop {
            let words = self.ask(&command)?;
            match words.trim() {
                "Server deleted." | "No such server." => return Ok(None),
                words if began.elapsed() >= patience => return Ok(Some(words.to_owned())),
                _ => thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Whether new sessions wait because of a switchover.
    pub(super) fn is_paused(&self) -> Result<bool> {
        Ok(self.server(WAITS)?.0.is_some())
    }

    /// Lets new sessions wait from now on. If that cannot be done within `patience`, nobody waits any more,
    /// and it is an error.
    pub(super) fn pause(&mut self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        let paused = self.try_pause(patience);
        match &paused {
            Ok(()) => self.end_short(patience.saturating_sub(began.elapsed()))?,
            Err(_) => self.resume(false)?,
        }
        paused
    }

    fn try_pause(&mut self, patience: Duration) -> Result<()> {
        let HaProxy {
            backend,
            old,
            address,
            ..
        } = &self.options;
        let state = self.ask(&format!("show servers state {backend}"))?;
        let place = places(&state).remove(old).ok_or_else(|| {
            ReplicaError::State(format!(
                "HAProxy tells no address of server {old} of back end {backend}"
            ))
        })?;
        if let Some(words) = self.add(place)? {
            return Err(ReplicaError::State(format!(
                "HAProxy does not add a server for which clients wait to back end {backend}: {words}"
            )));
        }
        self.tell(&pausing(&self.options))?;
        let held = held(address, patience.min(HELD_WITHIN)).map_err(|error| {
            ReplicaError::State(format!(
                "the source did not answer through HAProxy at {address} (--haproxy-address), or a client was \
                 faster: {error}"
            ))
        })?;
        self.held = Some(held);
        Ok(())
    }

    /// Waits for the end of sessions that are short.
    fn end_short(&self, patience: Duration) -> Result<()> {
        let (began, patience) = (Instant::now(), patience.min(ENDED_WITHIN));
        while began.elapsed() < patience
            && (self.server(&self.options.old)?.0).is_some_and(|it| it.sessions > 0)
        {
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Leads new sessions and those that wait to the target, once HAProxy lets them through.
    pub(super) fn lead(&self) -> Result<()> {
        let HaProxy { backend, new, .. } = &self.options;
        self.tell(&[format!("set server {backend}/{new} state ready")])?;
        let began = Instant::now();
        while !(self.server(new)?.0).is_some_and(|it| it.takes_sessions) {
            if began.elapsed() >= LED_WITHIN {
                return Err(ReplicaError::State(format!(
                    "HAProxy lets no session through to server {new} of back end {backend} after {}: see how it \
                     checks it",
                    span::show(LED_WITHIN)
                )));
            }
            thread::sleep(LOOK_EVERY);
        }
        self.take_waiting(new)?;
        self.tell(&leading(&self.options))
    }

    /// Ends the wait, if there is one: for the source, unless HAProxy leads to the target.
    pub(super) fn resume(&mut self, is_led: bool) -> Result<()> {
        if !self.is_paused()? {
            return Ok(());
        }
        let [closed, ended] = emptying(&self.options);
        if !is_led {
            self.tell(&taking_back(&self.options))?;
            self.take_waiting(&self.options.old)?;
        }
        self.tell(&[closed])?;
        self.held = None;
        // A client that was faster than we is on the source as it should be.
        if !is_led && self.delete(ENDED_WITHIN)?.is_none() {
            return Ok(());
        }
        self.tell(&[ended])?;
        match self.delete(CUT_WITHIN)? {
            None => Ok(()),
            Some(words) => Err(ReplicaError::State(format!(
                "HAProxy does not delete server {WAITS} of back end {}: {words}",
                self.options.backend
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
