//! PostgreSQL's own programs: pg_basebackup copies a peer, pg_ctl starts the new server.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockstep_client::Conninfo;
use lockstep_service::postgres::{self, PACKAGES};

use super::error::NewcomerError;
use super::kept::Kept;

/// What is needed of PostgreSQL's programs.
const NEEDED: [&str; 2] = ["pg_basebackup", "pg_ctl"];

/// Lines that are kept of what a program said.
const MOST_LINES: usize = 4;

/// Base backup of a peer.
#[derive(Debug, Clone)]
pub struct Copying<'a> {
    pub programs: &'a Path,
    pub peer: &'a str,
    pub conninfo: &'a Conninfo,
    pub data: &'a Path,
    pub node: &'a str,
    /// Most kilobytes a second.
    pub max_rate_kb: Option<u64>,
    pub tablespaces: &'a [String],
}

/// The folder of PostgreSQL's programs: the one that is given, else the major's packages, else the first
/// folder of PATH that has them.
pub fn find(given: Option<&Path>, major: u32) -> Result<PathBuf, NewcomerError> {
    if let Some(folder) = given {
        return postgres::with_programs(folder.to_path_buf(), &NEEDED).map_err(|missing| {
            NewcomerError::Usage(format!("--bin-dir: there is no {}", missing.display()))
        });
    }
    if let Ok(folder) = postgres::packaged(Path::new(PACKAGES), major, &NEEDED) {
        return Ok(folder);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    let found = folders.find_map(|folder| postgres::with_programs(folder, &NEEDED).ok());
    found.ok_or_else(|| {
        NewcomerError::Usage(format!(
            "pg_basebackup and pg_ctl of PostgreSQL {major} are not found: install the server's package, or name \
             their folder with --bin-dir"
        ))
    })
}

/// Copies a peer. `heard` is told how many kilobytes of how many there are.
pub fn base_backup(
    copying: &Copying<'_>,
    kept: &Kept,
    mut heard: impl FnMut(u64, u64),
) -> Result<(), NewcomerError> {
    let program = copying.programs.join("pg_basebackup");
    let mut command = Command::new(&program);
    // Other users of this machine can read arguments.
    let open = copying.conninfo.clone().without_secrets();
    if let Some(password) = copying.conninfo.get("password") {
        command.env("PGPASSWORD", password);
    }
    command
        .env("LC_ALL", "C")
        .env("PGAPPNAME", super::peer::APPLICATION);
    command.arg("--pgdata").arg(copying.data);
    command.arg("--dbname").arg(open.to_string());
    command.args([
        "--checkpoint=fast",
        "--wal-method=stream",
        "--progress",
        "--no-password",
    ]);
    command.arg(format!("--label=lockstep pool add {}", copying.node));
    if let Some(rate) = copying.max_rate_kb {
        command.arg(format!("--max-rate={rate}k"));
    }
    for mapping in copying.tablespaces {
        command.arg(format!("--tablespace-mapping={mapping}"));
    }
    command
        .stdin(kept.mark()?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(NewcomerError::io("start", &program))?;
    let mut said = VecDeque::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            match progress(&line) {
                Some((done, total)) => heard(done, total),
                None => keep(&mut said, line),
            }
        }
    }
    let status = child
        .wait()
        .map_err(NewcomerError::io("wait for", &program))?;
    match status.success() {
        true => Ok(()),
        false => Err(NewcomerError::Clone {
            node: copying.peer.to_owned(),
            words: words(said, &status.to_string()),
        }),
    }
}

fn keep(said: &mut VecDeque<String>, line: String) {
    if !line.trim().is_empty() {
        said.push_back(line);
    }
    if said.len() > MOST_LINES {
        said.pop_front();
    }
}

fn words(said: VecDeque<String>, otherwise: &str) -> String {
    match said.is_empty() {
        true => otherwise.to_owned(),
        false => Vec::from(said).join("; "),
    }
}

/// Reads a line of progress: `  1234/5678 kB (21%), 0/1 tablespace`.
fn progress(line: &str) -> Option<(u64, u64)> {
    let (figures, _) = line.trim_start().split_once(" kB (")?;
    let (done, total) = figures.split_once('/')?;
    Some((done.parse().ok()?, total.parse().ok()?))
}

/// Starts the server: by a command for the shell, or by pg_ctl. Does not wait until it answers.
pub fn start(
    command: Option<&str>,
    programs: &Path,
    data: &Path,
    log: &Path,
) -> Result<(), NewcomerError> {
    let mut starting = match command {
        Some(command) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg("-c").arg(command);
            shell
        }
        None => {
            let mut pg_ctl = Command::new(programs.join("pg_ctl"));
            pg_ctl.arg("--pgdata").arg(data).arg("--log").arg(log);
            pg_ctl.args(["--silent", "--no-wait", "start"]);
            pg_ctl
        }
    };
    // The server keeps what it inherits open: a file, and not a pipe that somebody reads to its end.
    let said = log.with_extension("start");
    let output = fs::File::create(&said).map_err(NewcomerError::io("write", &said))?;
    let again = output
        .try_clone()
        .map_err(NewcomerError::io("write", &said))?;
    starting.stdin(Stdio::null()).stdout(output).stderr(again);
    let status = starting.status();
    let text = fs::read_to_string(&said).unwrap_or_default();
    // It is of no use any more.
    let _ = fs::remove_file(&said);
    let status = status.map_err(|error| NewcomerError::Start(error.to_string()))?;
    match status.success() {
        true => Ok(()),
        false => {
            let mut lines = VecDeque::new();
            text.lines()
                .for_each(|line| keep(&mut lines, line.to_owned()));
            Err(NewcomerError::Start(words(lines, &status.to_string())))
        }
    }
}

/// The newest line of a server's log that says why it ended, if there is one. The line before one about a
/// configuration file says what is wrong there.
pub fn reason(log: &str) -> Option<String> {
    let is_reason = |line: &&str| {
        ["FATAL:", "PANIC:", "ERROR:"]
            .iter()
            .any(|sign| line.contains(sign))
    };
    let mut lines = log.lines().rev();
    let reason = lines.find(is_reason)?;
    match lines.next() {
        Some(cause) if reason.contains("contains errors") => Some(format!("{cause}; {reason}")),
        _ => Some(reason.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_lab::assert_has;

    #[test]
    fn progress_is_read() {
        for (line, expected) in [
            ("  1234/5678 kB (21%), 0/1 tablespace", Some((1234, 5678))),
            (
                "5678/5678 kB (100%), 1/1 tablespace (/x/y z)",
                Some((5678, 5678)),
            ),
            ("pg_basebackup: error: could not write to file", None),
            ("pg_basebackup: 1/x kB (", None),
            ("", None),
        ] {
            assert_eq!(progress(line), expected, "{line}");
        }
    }

    #[test]
    fn a_log_says_why_a_server_ended() {
        let log = "LOG:  starting\n2026 [1] FATAL:  could not create lock file\nLOG:  shut down\n";
        assert_eq!(
            reason(log).as_deref(),
            Some("2026 [1] FATAL:  could not create lock file")
        );
        assert_eq!(reason("LOG:  starting\n"), None);
        let log = "LOG:  unrecognized configuration parameter \"nosuch\" in file \"x\" line 5\n\
                   FATAL:  configuration file \"x\" contains errors\n";
        assert!(reason(log).unwrap().contains("\"nosuch\" in file"));
    }

    #[test]
    fn a_start_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("x.log");
        let start = |command| start(Some(command), Path::new("/none"), folder.path(), &log);
        assert!(start("exit 0").is_ok());
        let error = start("echo no such unit >&2; exit 5")
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such unit"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_has!(
            find(Some(folder.path()), 15).unwrap_err().to_string(),
            "--bin-dir"
        );
    }
}
