//! Runs a workload: one psql for each session, all at the same time.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::package::Package;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};

use crate::error::{RandomError, Result};
use crate::random::outcome::Summary;
use crate::random::{PREFIX, RandomWorkload, SCHEMA, Statement, script};

/// How long a session may be without an answer before its psql is killed. The limit for its
/// statements is shorter.
const SILENCE: Duration = Duration::from_secs(180);

/// psql's exit code when it has no connection.
const NO_CONNECTION: i32 = 2;

/// Settings with which a private server can run every part of a workload. Its standbys get
/// them too.
pub fn settings() -> Settings {
    settings_of([
        // There are more kinds of records than with `replica`.
        ("wal_level", "logical"),
        ("max_prepared_transactions", "32"),
        ("allow_in_place_tablespaces", "on"),
        ("track_commit_timestamp", "on"),
        ("max_locks_per_transaction", "512"),
        ("max_connections", "60"),
        ("deadlock_timeout", "150ms"),
        ("autovacuum_naptime", "3s"),
        ("shared_buffers", "32MB"),
        ("wal_log_hints", "off"),
        ("max_wal_size", "512MB"),
    ])
}

/// Starts a psql whose input and output are pipes to this process.
type StartPsql<'a> = dyn Fn() -> Result<Child> + Sync + 'a;

/// Runs the workload in a private server's usual database.
pub fn run(lab: &Lab, server: &Server, workload: &RandomWorkload) -> Result<Summary> {
    run_with(
        &|| {
            let mut psql = lab.launcher().command(lab.package().program("psql"));
            prepare(&mut psql, &server.conninfo(SUPERUSER));
            Ok(lab.launcher().spawn(psql, Side::Primary)?)
        },
        workload,
    )
}

/// Runs the workload as the invoking user in the database that a conninfo string or URI names.
/// An error unless the database's name begins with [`PREFIX`] or `any_database` is true.
pub fn run_on(
    package: &Package,
    conninfo: &str,
    any_database: bool,
    workload: &RandomWorkload,
) -> Result<Summary> {
    let start = || -> Result<Child> {
        let mut psql = Command::new(package.program("psql"));
        psql.env("PGAPPNAME", "lockstep-lab wal random");
        prepare(&mut psql, conninfo);
        psql.spawn()
            .map_err(|error| RandomError::Psql(error.to_string()).into())
    };
    let database = current_database(start()?)?;
    if !any_database && !database.starts_with(PREFIX) {
        return Err(RandomError::Database(database).into());
    }
    run_with(&start, workload)
}

fn prepare(psql: &mut Command, conninfo: &str) {
    psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
    psql.args(["--dbname", conninfo]);
    psql.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

fn current_database(psql: Child) -> Result<String> {
    let output = feed(psql, "SELECT current_database();\n")?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(RandomError::Unreachable(reason(&output.stderr, output.status)).into())
    }
}

fn run_with(start: &StartPsql<'_>, workload: &RandomWorkload) -> Result<Summary> {
    run_part(start, "set-up", workload.setup())?;
    let mut summary = Summary::default();
    let outcomes = thread::scope(|scope| {
        let sessions: Vec<_> = workload
            .sessions()
            .iter()
            .enumerate()
            .map(|(number, statements)| scope.spawn(move || run_session(start, number, statements)))
            .collect();
        sessions
            .into_iter()
            .map(|session| {
                session.join().unwrap_or_else(|_| {
                    Err(RandomError::Psql("the thread that feeds it died".to_owned()).into())
                })
            })
            .collect::<Vec<_>>()
    });
    let closed = run_part(start, "closing", workload.closing());
    for outcome in outcomes {
        summary.merge(outcome?);
    }
    closed?;
    Ok(summary)
}

fn run_part(start: &StartPsql<'_>, part: &'static str, input: &str) -> Result<()> {
    let output = feed(start()?, input)?;
    if output.status.success() {
        return Ok(());
    }
    let reason = reason(&output.stderr, output.status);
    Err(match output.status.code() {
        Some(NO_CONNECTION) => RandomError::Unreachable(reason),
        _ => RandomError::Part { part, reason },
    }
    .into())
}

fn reason(stderr: &[u8], status: ExitStatus) -> String {
    failure_line(&String::from_utf8_lossy(stderr)).unwrap_or_else(|| status.to_string())
}

/// Gives psql its whole input and waits for its end.
fn feed(mut psql: Child, input: &str) -> Result<Output> {
    let stdin = psql.stdin.take();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // Writing fails if psql has ended early. Its own message tells why.
            let _ = stdin.map(|mut stdin| stdin.write_all(input.as_bytes()));
        });
        psql.wait_with_output()
    });
    output.map_err(|error| RandomError::Psql(error.to_string()).into())
}

fn run_session(start: &StartPsql<'_>, session: usize, statements: &[Statement]) -> Result<Summary> {
    let mut psql = start()?;
    let (stdin, stdout, stderr) = (psql.stdin.take(), psql.stdout.take(), psql.stderr.take());
    let input = script::session(statements, SCHEMA);
    let mut summary = Summary::default();
    let mut answered = 0;
    let mut last = None;
    let said = thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        let errors = scope.spawn(move || {
            // Errors of statements are counted by their marks. Here only the last lines matter:
            // they tell why psql ended.
            let mut text = Vec::new();
            let _ = stderr.map(|mut stderr| stderr.read_to_end(&mut text));
            text
        });
        let (sender, lines) = mpsc::channel();
        scope.spawn(move || {
            let Some(stdout) = stdout else { return };
            for line in BufReader::new(stdout)
                .lines()
                .map_while(std::io::Result::ok)
            {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            match lines.recv_timeout(SILENCE) {
                Ok(line) => {
                    let Some((number, state, message)) = script::parse_mark(&line) else {
                        continue;
                    };
                    if let Some(statement) = statements.get(number) {
                        summary.add(session, number, statement, state, message);
                        answered += 1;
                        last = Some(number);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let _ = psql.kill();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        errors.join().unwrap_or_default()
    });
    let status = psql
        .wait()
        .map_err(|error| RandomError::Psql(error.to_string()))?;
    // Statements in a database that was not created are skipped, so not every statement has an
    // answer. The last one must have one.
    let expected = statements.iter().rposition(Statement::is_answered);
    if status.success() && last == expected {
        return Ok(summary);
    }
    Err(RandomError::Lost {
        session,
        answered,
        statements: statements.len(),
        reason: reason(&said, status),
    }
    .into())
}
