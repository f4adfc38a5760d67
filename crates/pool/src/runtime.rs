//! HAProxy's runtime socket: nodes are added, drained and removed without a reload.
//!
//! What it changes lasts until HAProxy is reloaded; the file that `configuration` writes counts from then on.
//! The plan is made without I/O; [`Runtime`] carries it out.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::haproxy::{self, ServerLine};

/// How long HAProxy may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of an answer.
const MOST_ANSWER: u64 = 16 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(
        "cannot use HAProxy's runtime socket {socket}: {source}; is HAProxy running, and is this its socket?"
    )]
    Socket { socket: String, source: io::Error },
    #[error("HAProxy says of \"{command}\": {words}")]
    Refused { command: String, words: String },
    #[error(
        "HAProxy has no back end {0}: write its configuration anew with lockstep pool haproxy, and reload it"
    )]
    NoBackend(String),
    #[error("HAProxy's statistics cannot be read: {0}")]
    Statistics(&'static str),
}

/// A server as HAProxy has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    pub backend: String,
    pub name: String,
    pub sessions: u64,
    pub takes_sessions: bool,
}

/// What HAProxy says that it has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub backends: BTreeSet<String>,
    /// The servers of our back ends.
    pub servers: Vec<Present>,
}

/// What is to be done so that HAProxy has the nodes that are wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan<'a> {
    pub missing: Vec<&'a ServerLine>,
    pub surplus: Vec<&'a Present>,
}

/// Compares what HAProxy has with what is wanted, by names: HAProxy does not say how it checks a server. Its
/// configuration may have no back ends for late nodes; it must have the others.
pub fn plan<'a>(
    wanted: &'a [ServerLine],
    statistics: &'a Statistics,
) -> Result<Plan<'a>, RuntimeError> {
    let is_there = |line: &ServerLine| statistics.backends.contains(line.backend);
    if let Some(line) = wanted.iter().find(|line| !line.is_late && !is_there(line)) {
        return Err(RuntimeError::NoBackend(line.backend.to_owned()));
    }
    let present = &statistics.servers;
    let is_one = |line: &ServerLine, present: &Present| {
        line.backend == present.backend && line.name == present.name
    };
    let is_surplus = |present: &&Present| !wanted.iter().any(|line| is_one(line, present));
    let is_missing =
        |line: &&ServerLine| is_there(line) && !present.iter().any(|present| is_one(line, present));
    Ok(Plan {
        missing: wanted.iter().filter(is_missing).collect(),
        surplus: present.iter().filter(is_surplus).collect(),
    })
}

/// A line of the answer to `show stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatRow {
    /// The front end, back end or `listen` section.
    pub proxy: String,
    /// `FRONTEND`, `BACKEND`, or a server's name.
    pub name: String,
    pub sessions: u64,
    /// Most sessions; None if there is no limit.
    pub limit: Option<u64>,
    /// Sessions that wait.
    pub queued: u64,
    pub status: String,
}

/// The answer to `show stat`.
pub fn read_rows(text: &str) -> Result<Vec<StatRow>, RuntimeError> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let head = lines.next().and_then(|line| line.strip_prefix("# "));
    let head: Vec<_> = head
        .ok_or(RuntimeError::Statistics("there is no head"))?
        .split(',')
        .collect();
    let place = |name: &str| head.iter().position(|found| *found == name);
    let places = ["pxname", "svname", "scur", "status"].map(place);
    let [limit, queued] = ["slim", "qcur"].map(place);
    let [Some(backend), Some(name), Some(sessions), Some(status)] = places else {
        return Err(RuntimeError::Statistics("a column is missing"));
    };
    lines
        .map(|line| {
            let fields: Vec<_> = line.split(',').collect();
            let field = |place: usize| {
                (fields.get(place).copied()).ok_or(RuntimeError::Statistics("a line is not whole"))
            };
            let sessions = field(sessions)?.parse();
            // Empty where there is none, as a front end has no queue.
            let number = |place: Option<usize>| fields.get(place?)?.parse().ok();
            Ok(StatRow {
                proxy: field(backend)?.to_owned(),
                name: field(name)?.to_owned(),
                sessions: sessions.map_err(|_| RuntimeError::Statistics("scur is no number"))?,
                limit: number(limit),
                queued: number(queued).unwrap_or_default(),
                status: field(status)?.to_owned(),
            })
        })
        .collect()
}

/// Our back ends and their servers, out of the answer to `show stat`.
pub fn read_statistics(text: &str) -> Result<Statistics, RuntimeError> {
    let mut all = Statistics::default();
    let rows = read_rows(text)?.into_iter();
    for row in rows.filter(|row| haproxy::is_backend(&row.proxy)) {
        match row.name.as_str() {
            "BACKEND" => {
                all.backends.insert(row.proxy);
            }
            _ => all.servers.push(Present {
                takes_sessions: row.status.starts_with("UP"),
                backend: row.proxy,
                name: row.name,
                sessions: row.sessions,
            }),
        }
    }
    Ok(all)
}

/// The socket.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub socket: PathBuf,
}

impl Runtime {
    pub fn statistics(&self) -> Result<Statistics, RuntimeError> {
        read_statistics(&self.ask("show stat -1 6 -1")?)
    }

    /// Lets a server take no new session, or take some again.
    pub fn drain(&self, server: &Present, is_drained: bool) -> Result<(), RuntimeError> {
        let state = if is_drained { "drain" } else { "ready" };
        self.set_state(server, state).map(drop)
    }

    /// Sets a server's state; false if HAProxy has no such server.
    fn set_state(&self, server: &Present, state: &str) -> Result<bool, RuntimeError> {
        let (backend, name) = (&server.backend, &server.name);
        let command = format!("set server {backend}/{name} state {state}");
        match self.ask(&command)?.trim() {
            "" => Ok(true),
            "No such server." => Ok(false),
            words => Err(refused(&command, backend, words)),
        }
    }

    pub fn add(&self, line: &ServerLine) -> Result<(), RuntimeError> {
        let (backend, name) = (&line.backend, &line.name);
        let words = self.ask(&format!("add server {backend}/{name} {}", line.settings))?;
        match words.trim() {
            // Another process was faster.
            "New server registered." | "Already exists a server with the same name in backend." => {
            }
            words => return Err(refused("add server", line.backend, words)),
        }
        self.tell(&format!("enable health {backend}/{name}"))?;
        if line.has_share {
            self.tell(&format!("enable agent {backend}/{name}"))?;
        }
        self.tell(&format!("set server {backend}/{name} state ready"))
    }

    /// Drains a server, and removes it if it has no session. True if it is gone, be it that another process
    /// has removed it meanwhile.
    pub fn retire(&self, server: &Present) -> Result<bool, RuntimeError> {
        let (backend, name) = (&server.backend, &server.name);
        if !self.set_state(server, "drain")? {
            return Ok(true);
        }
        if server.sessions > 0 {
            return Ok(false);
        }
        if !self.set_state(server, "maint")? {
            return Ok(true);
        }
        let words = self.ask(&format!("del server {backend}/{name}"))?;
        match words.trim() {
            "Server deleted." | "No such server." => Ok(true),
            // A session came in between.
            words if words.contains("connection") => Ok(false),
            words => Err(refused("del server", backend, words)),
        }
    }

    /// Cuts off all sessions of a server.
    pub fn cut_off(&self, server: &Present) -> Result<(), RuntimeError> {
        let (backend, name) = (&server.backend, &server.name);
        self.tell(&format!("shutdown sessions server {backend}/{name}"))
    }

    /// Sends a command that has no answer if all is well.
    pub fn tell(&self, command: &str) -> Result<(), RuntimeError> {
        let words = self.ask(command)?;
        match words.trim() {
            "" => Ok(()),
            words => Err(refused(command, "", words)),
        }
    }

    /// Sends a command, and returns the answer.
    pub fn ask(&self, command: &str) -> Result<String, RuntimeError> {
        let exchange = || {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.write_all(format!("{command}\n").as_bytes())?;
            let mut text = Vec::new();
            stream.take(MOST_ANSWER).read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        exchange().map_err(|source| RuntimeError::Socket {
            socket: self.socket.display().to_string(),
            source,
        })
    }
}

fn refused(command: &str, backend: &str, words: &str) -> RuntimeError {
    match words {
        "No such backend." => RuntimeError::NoBackend(backend.to_owned()),
        words => RuntimeError::Refused {
            command: command.to_owned(),
            words: words.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    fn line(backend: &'static str, name: &str) -> ServerLine {
        ServerLine {
            backend,
            is_late: backend.ends_with("-late"),
            has_share: true,
            name: name.to_owned(),
            settings: String::new(),
        }
    }

    #[test]
    fn what_differs_is_planned() {
        let text = "# pxname,svname,scur,status,addr,\n\
                    reads,a,3,UP,10.0.0.1:5432,\n\
                    reads,b,0,DOWN (agent),10.0.0.2:5432,\n\
                    reads,BACKEND,3,UP,,\n\
                    theirs,x,0,UP,10.0.0.9:80,\n\n";
        let found = read_statistics(text).unwrap();
        assert_eq!(found.servers.len(), 2);
        assert_eq!(
            (found.servers[0].sessions, found.servers[1].takes_sessions),
            (3, false)
        );
        let wanted = [
            line("reads", "a"),
            line("reads", "c"),
            line("reads-late", "c"),
        ];
        let planned = plan(&wanted, &found).unwrap();
        assert_eq!(planned.missing, [&wanted[1]]);
        assert_eq!(planned.surplus, [&found.servers[1]]);
        let error = plan(&[line("reports", "c")], &found).unwrap_err();
        assert!(error.to_string().contains("no back end reports"));
        for text in [
            "",
            "# pxname,svname\n",
            "# pxname,svname,scur,status\nreads,a\n",
        ] {
            assert!(read_statistics(text).is_err(), "{text}");
        }
    }

    /// `pool door` and `pool haproxy --watch` take one server out at the same time.
    #[test]
    fn a_server_that_another_process_has_removed_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let answers = [
            "No such server.",
            "",
            "No such server.",
            "",
            "",
            "No such server.",
        ];
        let proxy = thread::spawn(move || {
            answers.map(|answer| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 256];
                let length = stream.read(&mut asked).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                String::from_utf8_lossy(&asked[..length]).into_owned()
            })
        });
        let server = Present {
            backend: "reads".to_owned(),
            name: "a".to_owned(),
            sessions: 0,
            takes_sessions: true,
        };
        let runtime = Runtime { socket };
        for _ in 0..3 {
            assert!(runtime.retire(&server).unwrap());
        }
        let asked = proxy.join().unwrap();
        assert_eq!(asked[0], "set server reads/a state drain\n");
        assert_eq!(asked[5], "del server reads/a\n");
    }
}
