//! A switchover under load: two servers, a PgBouncer, pgbench that keeps a rate through it, and `lockstep`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::package::Major;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use serde_json::Value;

use crate::benchmark::Site;
use crate::{BenchError, Result};

/// Where Debian's package installs PgBouncer.
pub const PGBOUNCER: &str = "/usr/sbin/pgbouncer";

const DATABASE: &str = "app";
const PORT: &str = "6543";

/// Interval of questions, and the longest time until a replica applies or PgBouncer answers.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const READY_WITHIN: Duration = Duration::from_secs(60);

/// What a load went through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Passed {
    /// Longest time from when a transaction was due until its client had the answer.
    pub longest_ms: f64,
    pub transactions: u64,
    /// Transactions that failed, and clients that gave up.
    pub failed: u64,
    pub tps: f64,
}

fn unusable(words: impl Into<String>) -> BenchError {
    BenchError::Unusable(words.into())
}

fn settings() -> Settings {
    settings_of([
        ("wal_level", "logical"),
        ("shared_buffers", "256MB"),
        ("max_wal_size", "4GB"),
        ("checkpoint_timeout", "1h"),
        ("max_connections", "100"),
    ])
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A source with pgbench's tables and a target with a replica of it.
pub struct Pair<'a> {
    site: Site<'a>,
    source: Server,
    target: Server,
    folder: PathBuf,
    bouncer: Option<Running>,
    follower: Option<Running>,
}

impl<'a> Pair<'a> {
    /// Starts both servers, and copies the source; `number` tells it from others of the lab.
    pub fn start(
        site: Site<'a>,
        majors: (Major, Major),
        scale: u32,
        number: usize,
    ) -> Result<Self> {
        let lab = site.lab;
        let source = lab.primary_of(majors.0, &format!("source{number}"), &settings())?;
        let target = lab.primary_of(majors.1, &format!("target{number}"), &settings())?;
        for server in [&source, &target] {
            server.execute(&format!("CREATE DATABASE {DATABASE} TEMPLATE template0"))?;
        }
        let folder = lab.folder().join(format!("pooler{number}"));
        fs::create_dir(&folder).map_err(BenchError::io("create", &folder))?;
        lab.account().own(&folder)?;
        let mut pair = Self {
            site,
            source,
            target,
            folder,
            bouncer: None,
            follower: None,
        };
        pair.fill(scale)?;
        let from = conninfo(&pair.source);
        let to = conninfo(&pair.target);
        pair.lockstep(&["create", "r", "--source", &from, "--target", &to])?;
        pair.pool()?;
        Ok(pair)
    }

    /// The server to which a switchover leads, or the one to which the way back does.
    fn server(&self, is_back: bool) -> &Server {
        match is_back {
            true => &self.source,
            false => &self.target,
        }
    }

    fn fill(&self, scale: u32) -> Result<()> {
        let mut command = self.pgbench(self.source.sockets(), &self.source.port().to_string());
        command.args(["-i", "-q", "-s", &scale.to_string(), DATABASE]);
        self.site.lab.launcher().run(command)?;
        Ok(())
    }

    fn pgbench(&self, sockets: &Path, port: &str) -> Command {
        let program = self.site.lab.package().program("pgbench");
        let mut command = self.site.lab.launcher().command(program);
        command
            .arg("-h")
            .arg(sockets)
            .args(["-p", port, "-U", SUPERUSER]);
        command
    }

    /// `lockstep replica` with these arguments, and what it prints.
    fn lockstep(&self, args: &[&str]) -> Result<String> {
        let launcher = self.site.lab.launcher();
        let mut command = launcher.command_as_ourselves(self.site.product);
        command.arg("replica").args(args);
        Ok(launcher.output(command)?)
    }

    fn config(&self) -> PathBuf {
        self.folder.join("pgbouncer.ini")
    }

    fn head(&self) -> String {
        format!(
            "[pgbouncer]\nunix_socket_dir = {}\nlisten_port = {PORT}\nauth_type = any\nadmin_users = {SUPERUSER}\n\
             pool_mode = transaction\ndefault_pool_size = 16\n[databases]\n",
            self.folder.display()
        )
    }

    fn pool(&mut self) -> Result<()> {
        let (sockets, port) = (self.source.sockets().display(), self.source.port());
        let text = format!(
            "{}{DATABASE} = host={sockets} port={port} dbname={DATABASE} user={SUPERUSER}\n",
            self.head()
        );
        let config = self.config();
        fs::write(&config, text).map_err(BenchError::io("write", &config))?;
        let mut command = self.site.lab.launcher().command(PGBOUNCER);
        command.arg("-q").arg(&config).stderr(Stdio::null());
        let child = self.site.lab.launcher().spawn(command, Side::Both)?;
        self.bouncer = Some(Running(child));
        let console = Conninfo::parse(&self.console()).map_err(|it| unusable(it.words()))?;
        until("PgBouncer answers", || {
            Ok(Connection::connect(&console, Purpose::Sql, "lockstep-lab bench").is_ok())
        })
    }

    fn console(&self) -> String {
        let folder = self.folder.display();
        format!("host={folder} port={PORT} user={SUPERUSER} dbname=pgbouncer")
    }

    /// What leads PgBouncer to the server that the switchover names.
    fn on_switch(&self) -> String {
        format!(
            "printf '%s{DATABASE} = host=%s port=%s dbname=%s user={SUPERUSER}\\n' '{}' \"$LOCKSTEP_HOST\" \
             \"$LOCKSTEP_PORT\" \"$LOCKSTEP_DATABASE\" > {}",
            self.head(),
            self.config().display()
        )
    }

    /// Lets a process apply to a replica, and waits until it does.
    pub fn follow(&mut self, name: &str, is_back: bool) -> Result<()> {
        self.follower = None;
        let to = conninfo(self.server(is_back));
        let log = self.folder.join(format!("{name}.log"));
        let log = File::create(&log).map_err(BenchError::io("create", &log))?;
        let launcher = self.site.lab.launcher();
        let mut command = launcher.command_as_ourselves(self.site.product);
        command.args(["replica", "run", name, "--target", &to]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = launcher.spawn(command, Side::Both)?;
        self.follower = Some(Running(child));
        self.lockstep(&["start", name, "--target", &to]).map(drop)
    }

    /// Clients that keep a rate through PgBouncer for so long.
    pub fn load(&self, rate: u32, clients: u32, length: Duration, name: &str) -> Result<Load> {
        let log = self.folder.join(name);
        let mut command = self.pgbench(&self.folder, PORT);
        command.args([
            "-n",
            "-l",
            "-c",
            &clients.to_string(),
            "-R",
            &rate.to_string(),
        ]);
        command.args(["-T", &length.as_secs().to_string()]);
        command
            .arg(format!("--log-prefix={}", log.display()))
            .arg(DATABASE);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let child = self.site.lab.launcher().spawn(command, Side::Both)?;
        Ok(Load {
            child: Running(child),
            folder: self.folder.clone(),
            name: name.to_owned(),
            clients,
        })
    }

    /// Moves all writing to a replica's target.
    pub fn switch(&self, name: &str, is_back: bool) -> Result<()> {
        let (to, console, hook) = (
            conninfo(self.server(is_back)),
            self.console(),
            self.on_switch(),
        );
        self.lockstep(&[
            "switchover",
            name,
            "--target",
            &to,
            "--pgbouncer",
            &console,
            "--on-switch",
            &hook,
        ])
        .map(drop)
    }

    /// Rows of both sides that differ, of at most 100 in a table.
    pub fn differing_rows(&self, name: &str, is_back: bool) -> Result<u64> {
        let to = conninfo(self.server(is_back));
        let launcher = self.site.lab.launcher();
        let mut command = launcher.command_as_ourselves(self.site.product);
        command.args([
            "replica", "verify", name, "--target", &to, "--output", "json",
        ]);
        let output = command.stderr(Stdio::null()).output();
        let output = output.map_err(BenchError::io("run", self.site.product))?;
        let report: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| unusable(format!("replica verify: {error}")))?;
        let tables = report.get("tables").and_then(Value::as_array);
        let tables = tables.ok_or_else(|| unusable("replica verify names no tables"))?;
        let differences = tables.iter().filter_map(|table| table.get("differences"));
        let counts = differences.filter_map(Value::as_array).map(Vec::len);
        Ok(counts.sum::<usize>() as u64)
    }

    /// Rows of pgbench's history, one for each transaction.
    pub fn history(&self, is_back: bool) -> Result<u64> {
        let rows = self
            .server(is_back)
            .rows_in(DATABASE, "SELECT count(*) FROM pgbench_history")?;
        let count = rows.first().and_then(|row| row.first().cloned().flatten());
        let count = count.and_then(|text| text.parse().ok());
        count.ok_or_else(|| unusable("pgbench's history cannot be counted"))
    }
}

fn conninfo(server: &Server) -> String {
    let sockets = server.sockets().display();
    format!(
        "host={sockets} port={} user={SUPERUSER} dbname={DATABASE}",
        server.port()
    )
}

fn until(what: &str, mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is()? {
        if began.elapsed() > READY_WITHIN {
            return Err(unusable(format!("it did not happen that {what}")));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// A load that runs.
pub struct Load {
    child: Running,
    folder: PathBuf,
    name: String,
    clients: u32,
}

impl Load {
    /// Waits for its end.
    pub fn passed(mut self) -> Result<Passed> {
        let mut said = String::new();
        if let Some(stdout) = &mut self.child.0.stdout {
            let read = std::io::Read::read_to_string(stdout, &mut said);
            read.map_err(BenchError::io("read", &self.folder))?;
        }
        let status = self.child.0.wait();
        let status = status.map_err(BenchError::io("wait for", &self.folder))?;
        let mut longest_us = 0_u64;
        let entries = fs::read_dir(&self.folder).map_err(BenchError::io("read", &self.folder))?;
        for entry in entries {
            let path = entry.map_err(BenchError::io("read", &self.folder))?.path();
            let is_ours = path.file_name().and_then(|name| name.to_str());
            if is_ours.is_some_and(|name| name.starts_with(&format!("{}.", self.name))) {
                let text = fs::read_to_string(&path).map_err(BenchError::io("read", &path))?;
                longest_us = longest_us.max(longest(&text));
            }
        }
        let number =
            |label| number(&said, label).ok_or_else(|| unusable(format!("pgbench: {said}")));
        let gave_up = if status.success() {
            0
        } else {
            u64::from(self.clients)
        };
        Ok(Passed {
            longest_ms: longest_us as f64 / 1e3,
            transactions: number("number of transactions actually processed:")? as u64,
            failed: number("number of failed transactions:")? as u64 + gave_up,
            tps: number("tps =")?,
        })
    }
}

/// The longest transaction in pgbench's log, in microseconds.
fn longest(log: &str) -> u64 {
    let times = log.lines().filter_map(|line| line.split(' ').nth(2));
    times
        .filter_map(|time| time.parse().ok())
        .max()
        .unwrap_or(0)
}

/// The number that follows a label in what pgbench says.
fn number(said: &str, label: &str) -> Option<f64> {
    let rest = said.lines().find_map(|line| line.strip_prefix(label))?;
    let word = rest.trim().split([' ', '/']).next()?;
    word.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbenchs_words_and_log_are_read() {
        let said = "number of transactions actually processed: 2848/2900\n\
            number of failed transactions: 0 (0.000%)\ntps = 203.37 (without initial connection time)\n";
        assert_eq!(
            number(said, "number of transactions actually processed:"),
            Some(2848.0)
        );
        assert_eq!(number(said, "number of failed transactions:"), Some(0.0));
        assert_eq!(number(said, "tps ="), Some(203.37));
        assert_eq!(number(said, "nothing"), None);
        assert_eq!(
            longest("0 1 500 0 17 3 0\n1 1 90700 0 17 4 0\n0 2 600 0 18 1 1\n"),
            90_700
        );
    }
}
