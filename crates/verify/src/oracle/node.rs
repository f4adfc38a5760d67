//! One side of a comparison: a data folder that does not change while it is read.
//!
//! Of a stopped server the control file tells the position. A running server must be a standby
//! with replay paused: it writes its changed pages to disk before they are read, and afterwards
//! it is checked that replay has not moved.

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_client::target::Target;
use lockstep_lab::package::Package;
use lockstep_wire::Lsn;
use nix::errno::Errno;
use nix::sys::signal;
use nix::unistd::Pid;

use crate::error::oracle::{OracleError, Result};
use crate::oracle::control::{ClusterState, Control};
use crate::oracle::files::{Relation, RelationFork};
use crate::oracle::psql::Session;
use crate::oracle::wal::Wal;
use crate::side::Side;

/// The user for a running server that was named by its folder, unless PGUSER is set.
const SUPERUSER: &str = "postgres";

/// The package of a side's major. A server is asked for its major with any installed psql.
pub fn package_of(side: Side, target: &Target) -> crate::Result<Package> {
    let major = match target {
        Target::Folder(folder) => major_of(folder)?,
        Target::Conninfo(conninfo) => {
            let session = Session::new(&Package::newest()?, side, conninfo);
            let query = "SELECT current_setting('server_version_num')::int / 10000;";
            let [major] = session.row(query)?;
            major
        }
    };
    Ok(Package::find(major.parse()?)?)
}

/// The major in `folder`'s PG_VERSION.
fn major_of(folder: &Path) -> Result<String> {
    let not_one = |reason: String| OracleError::NotADataFolder {
        path: folder.to_path_buf(),
        reason,
    };
    if !folder.is_dir() {
        return Err(not_one("there is no such folder".to_owned()));
    }
    let version = fs::read_to_string(folder.join("PG_VERSION"))
        .map_err(|error| not_one(format!("PG_VERSION: {error}")))?;
    let control = folder.join("global/pg_control");
    fs::metadata(&control).map_err(|error| not_one(format!("global/pg_control: {error}")))?;
    Ok(version.trim().to_owned())
}

#[derive(Debug)]
pub struct Node {
    pub(crate) side: Side,
    pub(crate) folder: PathBuf,
    pub(crate) control: Control,
    pub(crate) position: Lsn,
    /// The changes of every record up to here must be on disk.
    pub(crate) durable: Lsn,
    pub(crate) wal: Wal,
    session: Option<Session>,
}

impl Node {
    /// Opens a side. An error unless the side can be used and does not change meanwhile.
    pub fn open(
        package: &Package,
        side: Side,
        target: &Target,
    ) -> std::result::Result<Self, OracleError> {
        match target {
            Target::Folder(folder) => {
                check_major(package, folder)?;
                match Postmaster::of(folder)? {
                    Some(postmaster) => {
                        let session = Session::new(package, side, &postmaster.conninfo());
                        Self::paused(package, side, folder, session)
                    }
                    None => Self::stopped(package, side, folder),
                }
            }
            Target::Conninfo(conninfo) => {
                let session = Session::new(package, side, conninfo);
                let [folder] = session.row("SELECT current_setting('data_directory');")?;
                let folder = PathBuf::from(folder);
                check_major(package, &folder)?;
                Self::paused(package, side, &folder, session)
            }
        }
    }

    fn stopped(package: &Package, side: Side, folder: &Path) -> Result<Self> {
        let control = Control::read(package, folder)?;
        let wal = Wal::of(package, folder, &control);
        let (position, durable) = match &control.state {
            // The last record is that of the shutdown checkpoint.
            ClusterState::ShutDown => {
                let end = wal.end_of_record(control.checkpoint)?;
                (end, end)
            }
            // The shutdown makes a restartpoint only if a checkpoint record was replayed since
            // the last one. So later changes of pages may be in no file.
            ClusterState::ShutDownInRecovery => {
                check_timeline(&control, folder)?;
                (control.minimum, control.checkpoint)
            }
            ClusterState::Other(state) => {
                return Err(OracleError::NeedsRecovery {
                    path: folder.to_path_buf(),
                    state: state.clone(),
                });
            }
        };
        Ok(Self {
            side,
            folder: folder.to_path_buf(),
            control,
            position,
            durable,
            wal,
            session: None,
        })
    }

    fn paused(package: &Package, side: Side, folder: &Path, session: Session) -> Result<Self> {
        let paused_at = pause_position(&session, folder)?;
        let control = Control::read(package, folder)?;
        let [identifier] = session.row("SELECT system_identifier FROM pg_control_system();")?;
        if identifier != control.system.to_string() {
            return Err(OracleError::NotADataFolder {
                path: folder.to_path_buf(),
                reason: "on this machine it is not the folder of the server asked".to_owned(),
            });
        }
        check_timeline(&control, folder)?;
        flush(&session, folder)?;
        Ok(Self {
            side,
            folder: folder.to_path_buf(),
            wal: Wal::of(package, folder, &control),
            control,
            position: paused_at,
            durable: paused_at,
            session: Some(session),
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The session with the server, if it runs.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Returns an error if the folder may have changed since it was opened.
    pub(crate) fn check_unchanged(&self, package: &Package) -> Result<()> {
        let changed = |what: &str| OracleError::Changed {
            path: self.folder.clone(),
            what: what.to_owned(),
        };
        match &self.session {
            Some(session) => match pause_position(session, &self.folder)? {
                now if now == self.position => Ok(()),
                now => Err(changed(&format!("it replayed up to {now}"))),
            },
            None if Postmaster::of(&self.folder)?.is_some() => Err(changed("it was started")),
            None if Control::read(package, &self.folder)? != self.control => {
                Err(changed("its control file changed"))
            }
            None => Ok(()),
        }
    }

    /// The name of a relation, if the server runs and knows it.
    pub(crate) fn name_of(&self, fork: &RelationFork) -> Option<String> {
        let session = self.session.as_ref()?;
        let Relation {
            database, number, ..
        } = fork.relation;
        let query = format!(
            "SELECT c.oid::regclass FROM pg_class c WHERE pg_relation_filenode(c.oid) = {number};"
        );
        // Relations that all databases share are found in any database.
        let rows = if database == 0 {
            session.rows(&query)
        } else {
            let name = format!("SELECT datname FROM pg_database WHERE oid = {database};");
            let [name] = session.row(&name).ok()?;
            session.in_database(&name).rows(&query)
        };
        rows.ok()?.into_iter().next()?.into_iter().next()
    }
}

/// An error if the timeline has changed since the last restartpoint: the oracle reads the WAL
/// of one timeline only.
fn check_timeline(control: &Control, folder: &Path) -> Result<()> {
    let from = control.timeline;
    match control.minimum_timeline {
        Some(to) if to != from => Err(OracleError::TimelineSwitch {
            path: folder.to_path_buf(),
            from,
            to,
        }),
        _ => Ok(()),
    }
}

fn check_major(package: &Package, folder: &Path) -> Result<()> {
    let found = major_of(folder)?;
    let expected = package.major().to_string();
    if found == expected {
        return Ok(());
    }
    Err(OracleError::Major {
        path: folder.to_path_buf(),
        found,
        expected,
    })
}

/// The position at which replay is paused; an error if it is not paused.
fn pause_position(session: &Session, folder: &Path) -> Result<Lsn> {
    let running = |state: &str| OracleError::Running {
        path: folder.to_path_buf(),
        state: state.to_owned(),
    };
    let [state, position] = session.row(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() ELSE 'primary' END,
                coalesce(pg_last_wal_replay_lsn(), '0/0');",
    )?;
    match state.as_str() {
        "paused" => position
            .parse()
            .map_err(|_| running("replay position unknown")),
        "primary" => Err(running("a primary")),
        state => Err(running(&format!("a standby, replay is {state}"))),
    }
}

/// Makes the server write every changed page to disk.
fn flush(session: &Session, folder: &Path) -> Result<()> {
    let schema = session.rows(
        "SELECT quote_ident(n.nspname) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE p.proname = 'lockstep_flush_buffers' AND p.pronargs = 0;",
    )?;
    let Some([schema]) = schema.first().map(Vec::as_slice) else {
        return Err(OracleError::NoFlush {
            path: folder.to_path_buf(),
        });
    };
    session.rows(&format!("SELECT {schema}.lockstep_flush_buffers();"))?;
    Ok(())
}

/// A running server, as described in its postmaster.pid.
struct Postmaster {
    port: String,
    host: String,
}

impl Postmaster {
    /// The server that runs on `folder`; None if none does.
    fn of(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("postmaster.pid");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(OracleError::io("read", &path))?,
        };
        let line = |number: usize| text.lines().nth(number).unwrap_or_default().trim();
        let Ok(pid) = line(0).parse::<i32>() else {
            return Ok(None);
        };
        if !is_alive(pid.abs(), folder) {
            return Ok(None);
        }
        let host = match line(4) {
            "" => line(5),
            folder => folder,
        };
        Ok(Some(Self {
            port: line(3).to_owned(),
            host: host.to_owned(),
        }))
    }

    fn conninfo(&self) -> String {
        let user = match std::env::var_os("PGUSER") {
            Some(_) => String::new(),
            None => format!(" user={SUPERUSER}"),
        };
        let host = self.host.replace('\\', "\\\\").replace('\'', "\\'");
        format!("host='{host}' port={} dbname=postgres{user}", self.port)
    }
}

/// True if process `pid` is the postmaster of `folder`, judged by its working directory. If
/// that cannot be read, it is enough that the process exists.
fn is_alive(pid: i32, folder: &Path) -> bool {
    if pid == 0 || matches!(signal::kill(Pid::from_raw(pid), None), Err(Errno::ESRCH)) {
        return false;
    }
    let canonical = |path: &Path| fs::canonicalize(path).ok();
    match canonical(Path::new(&format!("/proc/{pid}/cwd"))) {
        Some(cwd) => canonical(folder) == Some(cwd),
        None => true,
    }
}
