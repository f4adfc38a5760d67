//! Finds a server's processes by their kind.

use std::fmt;
use std::fs;

use lockstep_lab::server::Server;
use lockstep_lab::usage;

/// A kind of process of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    /// Replays WAL (standby).
    Startup,
    /// Receives WAL (standby).
    WalReceiver,
    /// Writes checkpoints and restartpoints.
    Checkpointer,
    /// Writes dirty pages.
    BackgroundWriter,
    /// Writes WAL of asynchronous commits (primary).
    WalWriter,
    /// Executes records ahead of replay (standby with Lockstep).
    ReplayHelper,
    /// Serves a client.
    ClientBackend,
}

impl Process {
    pub const ALL: [Self; 7] = [
        Self::Startup,
        Self::WalReceiver,
        Self::Checkpointer,
        Self::BackgroundWriter,
        Self::WalWriter,
        Self::ReplayHelper,
        Self::ClientBackend,
    ];

    /// The beginning of the process's title, after the cluster's name. None for a client
    /// backend, whose title begins with a user's name.
    fn title(self) -> Option<&'static str> {
        match self {
            Self::Startup => Some("startup"),
            Self::WalReceiver => Some("walreceiver"),
            Self::Checkpointer => Some("checkpointer"),
            Self::BackgroundWriter => Some("background writer"),
            Self::WalWriter => Some("walwriter"),
            Self::ReplayHelper => Some("lockstep replay helper"),
            Self::ClientBackend => None,
        }
    }

    /// True if a process with this title is of this kind. The title of a client backend is
    /// `USER DATABASE HOST ACTIVITY`, where the host of a Unix socket is `[local]`. A
    /// walsender's title is the same with the word `walsender` before it.
    fn has_title(self, title: &str) -> bool {
        match self.title() {
            Some(words) => title
                .strip_prefix(words)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')),
            None => !title.starts_with("walsender ") && title.split(' ').nth(2) == Some("[local]"),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title().unwrap_or("client backend"))
    }
}

/// The process id of the server's first process of this kind.
pub fn process_of(server: &Server, process: Process) -> Option<i32> {
    let postmaster = server.pid()?;
    usage::children(postmaster).into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .ok()
            .and_then(|line| title(&line, &server.id().name).map(|title| process.has_title(title)))
            == Some(true)
    })
}

/// The title without `postgres: ` and the cluster's name. The title overwrites the command
/// line in memory, and the rest of that is padding.
fn title<'a>(line: &'a str, cluster: &str) -> Option<&'a str> {
    let title = line
        .trim_end_matches(['\0', ' '])
        .strip_prefix("postgres: ")?;
    Some(
        title
            .strip_prefix(cluster)
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(title),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_tell_processes_apart() {
        for (line, kind) in [
            (
                "postgres: one: startup recovering 000000010000000000000003\0",
                Some(Process::Startup),
            ),
            ("postgres: one: startup", Some(Process::Startup)),
            (
                "postgres: one: walreceiver streaming 0/3000148\0\0",
                Some(Process::WalReceiver),
            ),
            ("postgres: one: checkpointer ", Some(Process::Checkpointer)),
            (
                "postgres: one: background writer ",
                Some(Process::BackgroundWriter),
            ),
            ("postgres: one: walwriter ", Some(Process::WalWriter)),
            (
                "postgres: one: lockstep replay helper 1 ",
                Some(Process::ReplayHelper),
            ),
            (
                "postgres: one: postgres postgres [local] idle",
                Some(Process::ClientBackend),
            ),
            (
                "postgres: one: checkpointer db [local] SELECT",
                Some(Process::ClientBackend),
            ),
            (
                "postgres: one: walsender postgres [local] streaming 0/3",
                None,
            ),
            ("postgres: one: autovacuum launcher ", None),
            ("/usr/lib/postgresql/15/bin/postgres\0-D\0x", None),
        ] {
            let title = title(line, "one");
            let found = Process::ALL
                .into_iter()
                .rfind(|kind| title.is_some_and(|title| kind.has_title(title)));
            assert_eq!(found, kind, "{line}");
        }
    }
}
