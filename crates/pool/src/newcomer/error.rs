//! Why a node cannot be added, and what to do.

use std::io;
use std::path::PathBuf;

use lockstep_client::ClientError;
use lockstep_service::words::figures;

#[derive(Debug, thiserror::Error)]
pub enum NewcomerError {
    #[error(
        "PostgreSQL does not run as root: run this as the account that is to own {}, as with sudo -u postgres",
        .0.display()
    )]
    Root(PathBuf),
    #[error("{0}")]
    Usage(String),
    #[error(
        "{node} cannot be used: {words}; is it up, and does its conninfo in the nodes file lead there?"
    )]
    Peer { node: String, words: String },
    #[error("{0} is in recovery, so it is no primary: name the present one in the nodes file")]
    NoPrimary(String),
    #[error(
        "{node} belongs to another cluster than {primary}: take it out of the nodes file, or correct its conninfo"
    )]
    OtherCluster { node: String, primary: String },
    #[error("{node}: role {role} needs {needs}")]
    Rights {
        node: String,
        role: String,
        needs: String,
    },
    #[error("{node} runs PostgreSQL {major}; this works from {least} on")]
    TooOld {
        node: String,
        major: u32,
        least: u32,
    },
    #[error(
        "{0} has no lockstep_hot_blocks() in the database of its conninfo, to warm the new node from: install \
         Lockstep's present library there, and CREATE EXTENSION lockstep, or ALTER EXTENSION lockstep UPDATE, on \
         the primary; or give --no-warm"
    )]
    NoHotBlocks(String),
    #[error("the server of --from cannot be cloned: {0}")]
    NoPeer(String),
    #[error(
        "--set {name}: PostgreSQL on the server to clone has no setting of that name that can be changed: correct it, \
         or leave it out"
    )]
    NoSetting { name: String },
    #[error("--set {name}={given}: a standby needs at least the primary's {least}")]
    TooLow {
        name: String,
        given: String,
        least: u64,
    },
    #[error(
        "the disk of {} has {}, and the clone needs about {}: free some room, or choose another --data",
        .folder.display(), figures::bytes(*.free as f64), figures::bytes(*.needed as f64)
    )]
    DiskFull {
        folder: PathBuf,
        free: u64,
        needed: u64,
    },
    #[error("port {port} is taken: stop what listens there, or give --conninfo another port")]
    PortTaken { port: u16 },
    #[error(
        "{} is not empty, and no clone that this command began: choose another --data. If a server of the pool \
         is there, leave --data out",
        .0.display()
    )]
    NotEmpty(PathBuf),
    #[error("{} is about {found}, not about {wanted}: finish that, or remove both it and the folder", .file.display())]
    OtherNode {
        file: PathBuf,
        found: String,
        wanted: String,
    },
    #[error("--data {} is no folder: name a folder that is empty or not there yet", .0.display())]
    NoFolder(PathBuf),
    #[error(
        "{} says that its clone is not whole, but there is a postmaster.pid in it: if a server runs there, stop it; \
         then empty the folder",
        .0.display()
    )]
    InUse(PathBuf),
    #[error(
        "another lockstep pool add{} works on {}: wait until it has ended",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default(), .data.display()
    )]
    Busy { data: PathBuf, pid: Option<u32> },
    #[error(
        "{0} keeps its settings outside its data folder: put postgresql.conf and pg_hba.conf of the new node where \
             its start looks for them, and give the command that starts it with --start"
    )]
    SettingsElsewhere(String),
    #[error(
        "the primary has a slot {0} already: remove the node that has it, drop it with \
         pg_drop_replication_slot('{0}'), or give --slot another name"
    )]
    SlotThere(String),
    #[error(
        "{node} is late: it has not replayed the primary's last checkpoint after {seconds} s, so WAL after its clone may be \
         gone: name another with --from"
    )]
    PeerLate { node: String, seconds: u64 },
    #[error("pg_basebackup from {node} failed: {words}{}", advice(.words))]
    Clone { node: String, words: String },
    #[error("the new server does not start: {0}")]
    Start(String),
    #[error("the new server does not follow the primary: {0}; run this again to go on")]
    Follow(String),
    #[error("cannot {what} {}", .path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{node}: {}", .source.words())]
    Client { node: String, source: ClientError },
}

impl NewcomerError {
    /// Wraps an error about a file.
    pub fn io(what: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { what, path, source }
    }

    /// Wraps a server's error.
    pub fn of(node: &str) -> impl Fn(ClientError) -> Self {
        let node = node.to_owned();
        move |source| Self::Client {
            node: node.clone(),
            source,
        }
    }
}

/// What to do about pg_basebackup's words, if they are known.
fn advice(words: &str) -> &'static str {
    let known = [
        (
            "No space left",
            "; free some room and run this again: the clone is made anew",
        ),
        (
            "no pg_hba.conf entry",
            "; add a line for database replication there, and reload",
        ),
        (
            "max_wal_senders",
            "; raise max_wal_senders there, or name another peer with --from",
        ),
        (
            "all replication slots are in use",
            "; raise max_replication_slots there",
        ),
        (
            "exists but is not empty",
            "; empty it, or give --tablespace-mapping",
        ),
    ];
    let found = known.iter().find(|(sign, _)| words.contains(sign));
    found.map_or("", |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let clone = |words: &str| NewcomerError::Clone {
            node: "db2".to_owned(),
            words: words.to_owned(),
        };
        let full = "could not write to file \"x\": No space left on device";
        let room = NewcomerError::DiskFull {
            folder: "/data".into(),
            free: 10 << 20,
            needed: 3 << 30,
        };
        for (error, words) in [
            (clone(full), "free some room and run this again"),
            (
                clone("FATAL:  no pg_hba.conf entry for replication"),
                "add a line for database replication",
            ),
            (
                clone("FATAL:  number of requested standby connections exceeds max_wal_senders"),
                "raise max_wal_senders",
            ),
            (
                clone("ERROR:  all replication slots are in use"),
                "raise max_replication_slots",
            ),
            (room, "has 10 MB, and the clone needs about 3.0 GB"),
        ] {
            let said = error.to_string();
            assert!(said.contains(words), "{said}");
        }
        assert!(clone("something").to_string().ends_with("something"));
    }
}
