//! One private PostgreSQL server: create, set up, start, stop, crash, promote.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Rows, field};
use lockstep_wire::Lsn;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::address::ServerAddress;
use crate::data_folder::Origin;
use crate::error::one_line;
use crate::launch::Launcher;
use crate::package::Package;
use crate::pinning::Side;
use crate::usage::{self, Usage};
use crate::{LabError, Result, Role, ServerId, port, server_log, sweep};

pub use crate::address::{DATABASE, PATIENCE, SUPERUSER};

/// Pause between two looks for an event that the server does not announce.
const POLL: Duration = Duration::from_millis(5);

/// The file of the lab's settings, included from postgresql.conf.
const SETTINGS_FILE: &str = "lab.conf";

/// Settings by name; values are quoted when written.
pub type Settings = BTreeMap<String, String>;

/// Settings from pairs of name and value.
pub fn settings_of<const N: usize>(pairs: [(&str, &str); N]) -> Settings {
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// How to stop a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Ends sessions and writes a shutdown checkpoint (SIGINT).
    Fast,
    /// Ends at once; the next start runs crash recovery (SIGQUIT).
    Immediate,
}

/// A private server. Dropping it stops it at once.
#[derive(Debug)]
pub struct Server {
    pub(crate) id: ServerId,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) package: Package,
    origin: Arc<Origin>,
    pub(crate) data: PathBuf,
    log: PathBuf,
    port: u16,
    side: Side,
    pub(crate) settings: Settings,
    /// Environment of the server's processes, beside what every program of the lab has.
    environment: BTreeMap<String, OsString>,
    child: Option<Child>,
    /// The superuser's sessions that are open and not in use, by database. Opening one costs the server
    /// 8 ms of CPU, a query in it 0.3 ms.
    sessions: Mutex<BTreeMap<String, Connection>>,
    /// Dropping this value leaves the server running.
    kept: bool,
}

impl Server {
    /// A server whose data folder does not exist yet. `chosen_port` is refused if it is in use.
    pub(crate) fn new(
        launcher: Arc<Launcher>,
        package: Package,
        origin: Arc<Origin>,
        role: Role,
        name: &str,
        chosen_port: Option<u16>,
    ) -> Result<Self> {
        let folder = launcher.folder().to_path_buf();
        let data = folder.join(name);
        refuse_used_folder(&data)?;
        let port = match chosen_port {
            Some(number) => {
                port::check(&folder, number)?;
                number
            }
            None => port::free(&folder)?,
        };
        Ok(Self {
            id: ServerId {
                role,
                name: name.to_owned(),
            },
            log: folder.join(format!("{name}.log")),
            launcher,
            package,
            origin,
            data,
            port,
            side: match role {
                Role::Primary => Side::Primary,
                Role::Standby => Side::Standby,
            },
            settings: Settings::new(),
            environment: BTreeMap::new(),
            child: None,
            sessions: Mutex::default(),
            kept: false,
        })
    }

    /// Lets the server use every core from its next start on.
    pub fn unpin(&mut self) {
        self.side = Side::Both;
    }

    /// Sets an environment variable of the server from its next start on.
    pub fn set_environment(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.insert(name.to_owned(), value.into());
    }

    pub fn id(&self) -> &ServerId {
        &self.id
    }

    /// The number in the socket's name.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the server's socket.
    pub fn sockets(&self) -> &Path {
        self.launcher.folder()
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The postmaster's process id while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.child
            .as_ref()
            .and_then(|child| i32::try_from(child.id()).ok())
    }

    /// libpq conninfo for `user`.
    pub fn conninfo(&self, user: &str) -> String {
        format!(
            "host={} port={} user={user} dbname={DATABASE}",
            self.sockets().display(),
            self.port
        )
    }

    /// Makes its data folder, of a cluster of its own.
    pub fn init(&self) -> Result<()> {
        refuse_used_folder(&self.data)?;
        self.origin
            .make(&self.launcher, &self.package, &self.data)?;
        self.include_settings()
    }

    pub fn include_settings(&self) -> Result<()> {
        let path = self.data.join("postgresql.conf");
        let line = format!("\ninclude_if_exists = '{SETTINGS_FILE}'\n");
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(LabError::io("write", &path))
    }

    /// Adds settings and writes them. They take effect at the next start or reload.
    pub fn set<N: Into<String>, V: Into<String>>(
        &mut self,
        settings: impl IntoIterator<Item = (N, V)>,
    ) -> Result<()> {
        self.settings
            .extend(settings.into_iter().map(|(n, v)| (n.into(), v.into())));
        self.write_settings()
    }

    /// The value that the lab has given a setting, if it has.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Removes a setting, so that it has the value that it would have without the lab.
    pub fn unset(&mut self, name: &str) -> Result<()> {
        self.settings.remove(name);
        self.write_settings()
    }

    fn write_settings(&self) -> Result<()> {
        let mut text = format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\nport = {}\ncluster_name = '{}'\n\
             logging_collector = off\nlog_destination = 'stderr'\nlog_line_prefix = '%m [%p] %b '\n",
            quoted(&self.sockets().display().to_string()),
            self.port,
            quoted(&self.id.name),
        );
        for (name, value) in &self.settings {
            text.push_str(&format!("{name} = '{}'\n", quoted(value)));
        }
        let path = self.data.join(SETTINGS_FILE);
        self.launcher
            .create_file(&path)?
            .write_all(text.as_bytes())
            .map_err(LabError::io("write", &path))
    }

    /// Starts the server, unless it runs, and waits until it accepts connections.
    pub fn start(&mut self) -> Result<()> {
        if !self.has_ended() {
            return Ok(());
        }
        let seen = self.launch()?;
        let started = self.await_connection(seen);
        if started.is_err() {
            self.end_at_once();
        }
        started
    }

    /// Starts the postmaster without waiting for anything. Returns the log's length before.
    pub fn launch(&mut self) -> Result<u64> {
        self.write_settings()?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(LabError::io("open", &self.log))?;
        self.launcher.account().own(&self.log)?;
        let seen = log.metadata().map_or(0, |meta| meta.len());
        let again = log.try_clone().map_err(LabError::io("open", &self.log))?;
        let mut postgres = self.launcher.command(self.package.program("postgres"));
        postgres.envs(&self.environment);
        postgres.arg("-D").arg(&self.data).stdout(again).stderr(log);
        self.child = Some(self.launcher.spawn(postgres, self.side)?);
        Ok(seen)
    }

    pub fn await_connection(&mut self, log_seen: u64) -> Result<()> {
        let mut refusal = None;
        let accepted = self.await_event("accept connections", PATIENCE, |server| {
            let ended = match server.child.as_mut().map(Child::try_wait) {
                Some(Ok(status)) => status,
                Some(Err(_)) | None => None,
            };
            if let Some(status) = ended {
                server.child = None;
                return Err(server.start_failure(log_seen, &status.to_string()));
            }
            if !server.says_ready() {
                return Ok(false);
            }
            refusal = server.query_text("SELECT").err();
            Ok(refusal.is_none())
        });
        accepted.map_err(|mut error| {
            if let (LabError::Timeout { what, .. }, Some(refusal)) = (&mut error, refusal) {
                *what = format!("accept connections (the last one: {refusal})");
            }
            error
        })
    }

    /// The postmaster has written that sessions may come. Each that comes earlier costs it a process.
    fn says_ready(&self) -> bool {
        let Ok(text) = fs::read_to_string(self.data.join("postmaster.pid")) else {
            return false;
        };
        let mut lines = text.lines();
        // A file that another postmaster has left may be there until ours writes its own.
        let is_ours = lines.next().map(str::parse) == self.pid().map(Ok);
        is_ours && lines.nth(6).map(str::trim_end) == Some("ready")
    }

    fn start_failure(&self, log_seen: u64, otherwise: &str) -> LabError {
        let reason = self
            .log_since(log_seen)
            .as_deref()
            .and_then(server_log::reason);
        LabError::Start {
            server: self.id.clone(),
            reason: reason.unwrap_or_else(|| otherwise.to_owned()),
        }
    }

    /// Bytes of the server's log so far, for [`Server::log_since`].
    pub fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |meta| meta.len())
    }

    /// What was logged after the first `seen` bytes.
    pub fn log_since(&self, seen: u64) -> Option<String> {
        let bytes = fs::read(&self.log).ok()?;
        let new = bytes.get(usize::try_from(seen).ok()?..)?;
        Some(String::from_utf8_lossy(new).into_owned())
    }

    /// Calls `happened` until it returns true. An error after `patience`.
    pub fn await_event(
        &mut self,
        what: &str,
        patience: Duration,
        mut happened: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let started = Instant::now();
        while !happened(self)? {
            if started.elapsed() > patience {
                return Err(LabError::Timeout {
                    server: self.id.clone(),
                    what: what.to_owned(),
                    seconds: patience.as_secs(),
                    log: self.log.clone(),
                });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    pub fn connect(&self, user: &str, application: &str) -> Result<Connection> {
        self.config(user, application)
            .connect()
            .map_err(|error| self.refused("refused a connection", &error))
    }

    /// How to connect, for threads that may have to reconnect.
    pub fn config(&self, user: &str, application: &str) -> ServerAddress {
        ServerAddress {
            sockets: self.sockets().to_path_buf(),
            port: self.port,
            database: DATABASE.to_owned(),
            user: user.to_owned(),
            application: application.to_owned(),
        }
    }

    /// An error that says what the server did (`what`) and why.
    pub fn refused(&self, what: &str, error: &ClientError) -> LabError {
        LabError::Refused {
            server: self.id.clone(),
            what: what.to_owned(),
            reason: one_line(&error.words()),
        }
    }

    /// Runs SQL of a test, which fails with the server's words if that does.
    #[track_caller]
    #[allow(clippy::panic)]
    pub fn run(&self, sql: &str) {
        if let Err(error) = self.execute(sql) {
            panic!("{error}: {sql}");
        }
    }

    /// Runs SQL as superuser, without results. What it sets for its session goes no further.
    pub fn execute(&self, sql: &str) -> Result<()> {
        self.ask(DATABASE, "refused a statement", |session| {
            session.execute(sql)?;
            Ok(((), session.execute("DISCARD ALL").is_ok()))
        })
    }

    /// The rows of a query in a database, as superuser. A query that changes its session is for
    /// [`Server::execute`].
    pub fn rows_in(&self, database: &str, sql: &str) -> Result<Rows> {
        self.ask(database, "refused a query", |session| {
            Ok((session.query(sql)?, true))
        })
    }

    /// The first column of the first row of a query whose result is text, or None if
    /// there is no row or it is null.
    pub fn query_text(&self, sql: &str) -> Result<Option<String>> {
        self.ask(DATABASE, "refused a query", |session| {
            let row = session.query_opt(sql)?;
            Ok((row.and_then(|row| row.into_iter().next().flatten()), true))
        })
    }

    /// Asks in the superuser's session, which is kept if the question says so, unless it was refused. Opens a
    /// session if another thread uses the one that was kept, or if that has ended.
    fn ask<T>(
        &self,
        database: &str,
        refused: &str,
        question: impl FnOnce(&mut Connection) -> std::result::Result<(T, bool), ClientError>,
    ) -> Result<T> {
        let kept = self.sessions().remove(database);
        let mut session = match kept.filter(Connection::is_quiet) {
            Some(session) => session,
            None => self
                .config(SUPERUSER, "lockstep lab")
                .database(database)
                .connect()
                .map_err(|error| self.refused("refused a connection", &error))?,
        };
        let (answer, keep) =
            question(&mut session).map_err(|error| self.refused(refused, &error))?;
        if keep {
            self.sessions().insert(database.to_owned(), session);
        }
        Ok(answer)
    }

    /// Ends the sessions that are kept open, for commands that refuse to run beside a session.
    pub fn end_sessions(&self) {
        self.sessions().clear();
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, Connection>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// End of the WAL that is flushed (primary).
    pub fn flush_lsn(&self) -> Result<Lsn> {
        self.lsn("SELECT pg_current_wal_flush_lsn()")
    }

    /// End of the WAL that is replayed (standby).
    pub fn replay_lsn(&self) -> Result<Lsn> {
        self.lsn("SELECT coalesce(pg_last_wal_replay_lsn(), '0/0')")
    }

    fn lsn(&self, sql: &str) -> Result<Lsn> {
        self.ask(DATABASE, "refused a query", |session| {
            let row = session.query_one(sql)?;
            Ok((field(&row, 0)?, true))
        })
    }

    /// Makes changed settings take effect without a restart: for sessions that begin once this returns. Other
    /// processes may read them later.
    pub fn reload(&self) -> Result<()> {
        let before = self.query_text("SELECT clock_timestamp()::text")?;
        let before = before.unwrap_or_default();
        self.execute("SELECT pg_reload_conf()")?;
        let started = Instant::now();
        let is_read = format!("SELECT pg_conf_load_time() > '{before}'::timestamptz");
        loop {
            // A session has the time from the postmaster.
            let mut session = self.connect(SUPERUSER, "lockstep lab")?;
            let answer = session.query_one(&is_read);
            let answer = answer.map_err(|error| self.refused("refused a query", &error))?;
            if answer.first().and_then(Option::as_deref) == Some("t") {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                return Err(LabError::Timeout {
                    server: self.id.clone(),
                    what: "read its settings".to_owned(),
                    seconds: PATIENCE.as_secs(),
                    log: self.log.clone(),
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Stops the server and waits until it has ended.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        self.end_sessions();
        self.signal(match how {
            Stop::Fast => Signal::SIGINT,
            Stop::Immediate => Signal::SIGQUIT,
        });
        let stopped = self.await_event("stop", PATIENCE, |server| Ok(server.has_ended()));
        self.end_at_once();
        stopped
    }

    /// Fast stop and start, e.g. for settings that need a restart.
    pub fn restart(&mut self) -> Result<()> {
        self.stop(Stop::Fast)?;
        self.start()
    }

    /// Kills every process of the server (SIGKILL), as when the machine loses power
    /// with its disk's cache intact.
    pub fn kill(&mut self) -> Result<()> {
        self.kill_and_await(true)
    }

    /// Kills the postmaster alone (SIGKILL) and waits until its children, which notice that,
    /// have ended as well.
    pub fn kill_postmaster(&mut self) -> Result<()> {
        self.kill_and_await(false)
    }

    fn kill_and_await(&mut self, children: bool) -> Result<()> {
        let Some(postmaster) = self.pid() else {
            return Ok(());
        };
        let send = |pid, signal| {
            let _ = signal::kill(Pid::from_raw(pid), signal);
        };
        if children {
            // It starts no more of them, and none sees it gone and ends in good order.
            send(postmaster, Signal::SIGSTOP);
        }
        let mut family = usage::children(postmaster);
        family.push(postmaster);
        let segments: Vec<_> = family
            .iter()
            .flat_map(|&pid| sweep::shared_segments(pid))
            .collect();
        for pid in family {
            if children || pid == postmaster {
                send(pid, Signal::SIGKILL);
            }
        }
        self.end_at_once();
        let data = self.data.clone();
        self.await_event("end", PATIENCE, |_| {
            Ok(sweep::processes(&data).is_empty() && !sweep::is_segment_attached(&data))
        })?;
        // Nothing else removes these segments: the next start only removes the one that its
        // data folder names.
        for segment in segments {
            let _ = fs::remove_file(segment);
        }
        Ok(())
    }

    /// CPU time and memory of the server's processes.
    pub fn usage(&self) -> Usage {
        self.pid().map(usage::of_server).unwrap_or_default()
    }

    /// Returns an error if the postmaster has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        if !self.has_ended() {
            return Ok(());
        }
        let reason = self.log_since(0).as_deref().and_then(server_log::reason);
        Err(LabError::Refused {
            server: self.id.clone(),
            what: "ended unexpectedly".to_owned(),
            reason: reason.unwrap_or_else(|| format!("look at {}", self.log.display())),
        })
    }

    /// Leaves the server running when this value is dropped.
    pub fn leave_running(&mut self) {
        self.kept = true;
    }

    pub fn has_ended(&mut self) -> bool {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => false,
            Some(Ok(Some(_))) => {
                // Forget the child of an ended server: its process id may be reused.
                self.child = None;
                true
            }
            Some(Err(_)) | None => true,
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = signal::kill(Pid::from_raw(pid), signal);
        }
    }

    /// Ends the postmaster if it still runs, and reaps it.
    fn end_at_once(&mut self) {
        if self.has_ended() {
            return;
        }
        self.signal(Signal::SIGQUIT);
        // The postmaster itself kills children that take longer than 5 s to quit.
        let ended = self.await_event("stop", Duration::from_secs(10), |server| {
            Ok(server.has_ended())
        });
        if ended.is_ok() {
            return;
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.kept {
            self.end_at_once();
        }
    }
}

fn refuse_used_folder(data: &Path) -> Result<()> {
    let used = match fs::read_dir(data) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    if used {
        Err(LabError::DataFolderInUse(data.to_path_buf()))
    } else {
        Ok(())
    }
}

fn quoted(value: &str) -> String {
    value.replace('\'', "''").replace('\n', " ")
}
