//! A new node, from the first look at the pool to one that may serve.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, field};
use lockstep_wire::Lsn;
use nix::sys::signal::{self, Signal};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Pid, geteuid};

use super::error::NewcomerError;
use super::kept::{About, Kept, Step, Todo, clear, close, decide, look};
use super::peer::{APPLICATION, Asked, Facts, Place, ask, check_primary, choose, looks_per_s};
use super::programs::{self, Copying};
use super::settings::{Wanted, settings, with_block};
use super::warm::{Warmed, Warming, alone, warm};
use crate::session;

/// Time between two looks at a server.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long nothing may change before the wait for it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a server that was started may take to write its postmaster.pid, and one that is ready to answer.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Room beside the peer's data, for WAL that is written meanwhile.
const ROOM: u64 = 64 << 20;

/// What is to be added.
#[derive(Debug, Clone)]
pub struct Order {
    pub node: String,
    pub data: PathBuf,
    /// Where the new server will answer, and with which role it is asked and warmed.
    pub conninfo: Conninfo,
    pub port: u16,
    /// The folder of its socket, if clients reach it so.
    pub sockets: Option<String>,
    pub primary: Place,
    pub standbys: Vec<Place>,
    /// The server to clone, if it is given.
    pub from: Option<String>,
    pub primary_conninfo: String,
    pub slot: String,
    pub max_rate_kb: Option<u64>,
    pub settings: Vec<(String, String)>,
    pub tablespaces: Vec<String>,
    /// The command that starts the server, if not pg_ctl.
    pub start: Option<String>,
    pub programs: Option<PathBuf>,
    pub warming: Option<Warming>,
}

/// Parts of the work that take time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Clone,
    Start,
    CatchUp,
    Warm,
}

/// What is told meanwhile.
#[derive(Debug)]
pub enum Told<'a> {
    /// A server that does not answer, which is left alone.
    Silent(&'a NewcomerError),
    /// An earlier call has come so far.
    GoesOn(Step),
    Begins(Stage, &'a str),
    /// What is done, and all there is: kilobytes of the clone, or blocks that were asked for.
    Progress(u64, u64),
    Ended(Stage, Duration),
    /// What was read, and how long readers alone would need at least for nine tenths of it, if that is known.
    Warmed(&'a Warmed, Option<Duration>),
}

/// The work on one node.
struct Work<'a> {
    order: &'a Order,
    kept: Kept,
    primary: &'a Facts,
    peer: &'a Place,
    of_peer: &'a Facts,
    programs: PathBuf,
}

/// Brings a new node to where it may serve. Whoever lets it serve then removes what is returned.
pub fn add(order: &Order, tell: &(dyn Fn(Told<'_>) + Sync)) -> Result<Kept, NewcomerError> {
    if geteuid().is_root() {
        return Err(NewcomerError::Root(order.data.clone()));
    }
    // A file is refused before another one is made beside it.
    look(&order.data)?;
    let (primary, standbys) = ask_all(order)?;
    for (_, facts) in &standbys {
        if let Err(error) = facts {
            tell(Told::Silent(error));
        }
    }
    let (peer, of_peer) = choose((&order.primary, &primary), &standbys, order.from.as_deref())?;
    if order.warming.is_some() && of_peer.hot_schema.is_none() {
        return Err(NewcomerError::NoHotBlocks(peer.name.clone()));
    }
    if of_peer.settings_elsewhere && order.start.is_none() {
        return Err(NewcomerError::SettingsElsewhere(peer.name.clone()));
    }
    let wanted = order.wanted_settings(of_peer, &primary)?;
    let programs = programs::find(order.programs.as_deref(), primary.major)?;
    let about = About {
        node: order.node.clone(),
        system: primary.system,
        slot: order.slot.clone(),
    };
    let was_there = Kept::beside(&order.data).exists();
    let (kept, known) = Kept::open(&order.data)?;
    let todo = look(&order.data)
        .and_then(|folder| decide(known.as_ref(), &about, folder, (&order.data, kept.path())));
    let todo = match todo {
        Ok(todo) => todo,
        // A refusal leaves nothing behind.
        Err(error) if !was_there => return kept.remove().and(Err(error)),
        Err(error) => return Err(error),
    };
    let mut work = Work {
        order,
        kept,
        primary: &primary,
        peer,
        of_peer,
        programs,
    };
    work.run(todo, &about, &wanted, tell)?;
    Ok(work.kept)
}

/// Asks all servers at once. The primary must answer.
fn ask_all(order: &Order) -> Result<(Facts, Vec<Asked>), NewcomerError> {
    thread::scope(|scope| {
        let asking: Vec<_> = (order.standbys.iter())
            .map(|place| (place, scope.spawn(move || ask(place))))
            .collect();
        let primary = ask(&order.primary)?;
        check_primary(&order.primary.name, &primary)?;
        let standbys = asking.into_iter().map(|(place, asking)| {
            let failed = NewcomerError::Peer {
                node: place.name.clone(),
                words: "asking it has failed".to_owned(),
            };
            (place.clone(), asking.join().unwrap_or(Err(failed)))
        });
        Ok((primary, standbys.collect()))
    })
}

/// The postmaster in a data folder, and what it says of itself, if it runs. After a crash of the machine its
/// number may be another process's by now, which works in another folder.
fn postmaster(data: &Path) -> Option<(Pid, String)> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let mut lines = text.lines();
    let pid: i32 = lines.next()?.trim().parse().ok()?;
    let status = lines.nth(6).unwrap_or_default().trim().to_owned();
    let folder = fs::canonicalize(data).ok()?;
    let is_its = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|works_in| works_in == folder);
    (pid > 1 && is_its).then_some((Pid::from_raw(pid), status))
}

/// Whether nothing is left to do for a node of the nodes file: no call has begun that did not end, and the
/// server at its place runs in this folder.
pub fn is_done(data: &Path, conninfo: &Conninfo) -> bool {
    if Kept::beside(data).exists() || postmaster(data).is_none() {
        return false;
    }
    let folder = session::open(conninfo, APPLICATION)
        .and_then(|mut session| session.query_one("SELECT current_setting('data_directory')"))
        .and_then(|row| field::<String>(&row, 0));
    let real = |path: &Path| fs::canonicalize(path).ok();
    folder.is_ok_and(|folder| real(Path::new(&folder)).is_some_and(|it| real(data) == Some(it)))
}

impl Order {
    fn wanted_settings(
        &self,
        peer: &Facts,
        primary: &Facts,
    ) -> Result<BTreeMap<String, String>, NewcomerError> {
        let wanted = Wanted {
            given: &self.settings,
            port: self.port,
            sockets: self.sockets.as_deref(),
            primary_conninfo: &self.primary_conninfo,
            slot: &self.slot,
        };
        settings(&wanted, peer, primary)
    }

    /// The log that pg_ctl gives the server.
    fn log(&self) -> PathBuf {
        let mut name = self.data.as_os_str().to_owned();
        name.push(".log");
        name.into()
    }

    /// What the postmaster in the data folder says of itself, if it runs.
    fn postmaster(&self) -> Option<String> {
        postmaster(&self.data).map(|(_, status)| status)
    }

    /// Lets the server, if it runs, read its settings anew.
    fn reload(&self) {
        if let Some((pid, _)) = postmaster(&self.data) {
            let _ = signal::kill(pid, Signal::SIGHUP);
        }
    }

    /// Refuses a port where something listens.
    fn check_port(&self) -> Result<(), NewcomerError> {
        let is_bound = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse);
        match is_bound || Connection::answers(&self.conninfo) {
            true => Err(NewcomerError::PortTaken { port: self.port }),
            false => Ok(()),
        }
    }

    fn check_room(&self, needed: u64) -> Result<(), NewcomerError> {
        let parent = match self.data.is_dir() {
            true => &self.data,
            false => self.data.parent().unwrap_or(Path::new("/")),
        };
        let system = statvfs(parent)
            .map_err(|errno| NewcomerError::io("look at the disk of", parent)(errno.into()))?;
        let free = system
            .blocks_available()
            .saturating_mul(system.fragment_size());
        match free < needed {
            true => Err(NewcomerError::DiskFull {
                folder: parent.to_path_buf(),
                free,
                needed,
            }),
            false => Ok(()),
        }
    }
}

impl Work<'_> {
    fn run(
        &mut self,
        todo: Todo,
        about: &About,
        wanted: &BTreeMap<String, String>,
        tell: &(dyn Fn(Told<'_>) + Sync),
    ) -> Result<(), NewcomerError> {
        let step = match todo {
            Todo::GoOn(step) => step,
            Todo::Begin | Todo::CloneAnew => Step::Begun,
        };
        if todo != Todo::Begin {
            tell(Told::GoesOn(step));
        }
        if step == Step::Begun {
            self.clone_peer(todo, about, wanted, tell)?;
        } else if configure(&self.order.data, wanted, true)? {
            self.order.reload();
        }
        self.timed(Stage::Start, "", tell, |work| work.start())?;
        let (order, peer) = (self.order, self.peer);
        self.timed(Stage::CatchUp, &order.primary.name, tell, |work| {
            work.catch_up()
        })?;
        if step == Step::Warm {
            return Ok(());
        }
        let of_peer = self.of_peer;
        let (Some(warming), Some(schema)) = (order.warming, &of_peer.hot_schema) else {
            return Ok(());
        };
        self.timed(Stage::Warm, &peer.name, tell, |work| {
            let node = (order.node.as_str(), &order.conninfo);
            let heard = |asked, listed| tell(Told::Progress(asked, listed));
            let warmed = warm((&peer.conninfo, schema), node, warming, &heard)?;
            let looks = looks_per_s(peer, of_peer);
            let alone = looks.and_then(|looks| alone(warmed.blocks_read, looks));
            tell(Told::Warmed(&warmed, alone));
            work.kept.done(Step::Warm)
        })
    }

    fn timed(
        &mut self,
        stage: Stage,
        of: &str,
        tell: &(dyn Fn(Told<'_>) + Sync),
        work: impl FnOnce(&mut Self) -> Result<(), NewcomerError>,
    ) -> Result<(), NewcomerError> {
        tell(Told::Begins(stage, of));
        let began = Instant::now();
        work(self)?;
        tell(Told::Ended(stage, began.elapsed()));
        Ok(())
    }

    /// Makes slot and clone. The slot is there before the clone begins, so the primary keeps all WAL from
    /// then on; the clone ends behind it, since the peer has replayed what the slot begins with.
    fn clone_peer(
        &mut self,
        todo: Todo,
        about: &About,
        wanted: &BTreeMap<String, String>,
        tell: &(dyn Fn(Told<'_>) + Sync),
    ) -> Result<(), NewcomerError> {
        let of_primary = NewcomerError::of(&self.order.primary.name);
        let mut primary =
            session::open(&self.order.primary.conninfo, APPLICATION).map_err(&of_primary)?;
        if todo == Todo::Begin {
            let checked = self.order.check_port().and_then(|()| {
                self.order.check_room(self.of_peer.data_bytes + ROOM)?;
                match slot(&mut primary, about).map_err(&of_primary)? {
                    Some(_) => Err(NewcomerError::SlotThere(about.slot.clone())),
                    None => Ok(()),
                }
            });
            if let Err(error) = checked {
                // Nothing was begun: the empty file says so, and goes away.
                let _ = fs::remove_file(self.kept.path());
                return Err(error);
            }
        } else {
            clear(&self.order.data)?;
            self.order.check_room(self.of_peer.data_bytes + ROOM)?;
        }
        close(&self.order.data)?;
        self.kept.begin(about)?;
        let begins = match slot(&mut primary, about).map_err(&of_primary)? {
            Some(begins) => begins,
            None => make_slot(&mut primary, about).map_err(&of_primary)?,
        };
        self.await_peer(begins)?;
        let (order, peer, programs) = (self.order, self.peer, self.programs.clone());
        let copying = Copying {
            programs: &programs,
            peer: &peer.name,
            conninfo: &peer.conninfo,
            data: &order.data,
            node: &order.node,
            max_rate_kb: order.max_rate_kb,
            tablespaces: &order.tablespaces,
        };
        self.timed(Stage::Clone, &peer.name, tell, |work| {
            programs::base_backup(&copying, &work.kept, |done, total| {
                tell(Told::Progress(done, total));
            })?;
            configure(&work.order.data, wanted, false)?;
            make_standby(&work.order.data)?;
            work.kept.done(Step::Cloned)
        })
    }

    /// Waits until the peer has replayed what the slot begins with.
    fn await_peer(&self, begins: Lsn) -> Result<(), NewcomerError> {
        if !self.of_peer.in_recovery {
            return Ok(());
        }
        let wrong = NewcomerError::of(&self.peer.name);
        let mut peer = session::open(&self.peer.conninfo, APPLICATION).map_err(&wrong)?;
        let began = Instant::now();
        loop {
            let row = peer
                .query_one("SELECT pg_last_wal_replay_lsn()")
                .map_err(&wrong)?;
            let replayed: Option<Lsn> = field(&row, 0).map_err(&wrong)?;
            if replayed.is_some_and(|replayed| replayed >= begins) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(NewcomerError::PeerLate {
                    node: self.peer.name.clone(),
                    seconds: PATIENCE.as_secs(),
                });
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts the server unless it runs, and waits until it answers.
    fn start(&self) -> Result<(), NewcomerError> {
        let order = self.order;
        let log = order.log();
        let logged = fs::metadata(&log).map_or(0, |about| about.len());
        if order.postmaster().is_none() {
            order.check_port()?;
            programs::start(order.start.as_deref(), &self.programs, &order.data, &log)?;
        }
        let (mut seen, mut ready) = (Instant::now(), None);
        loop {
            let status = order.postmaster();
            match &status {
                Some(_) => seen = Instant::now(),
                None if seen.elapsed() > START_PATIENCE || self.has_ended(logged) => {
                    return Err(NewcomerError::Start(self.why(logged)));
                }
                None => {}
            }
            if status.as_deref() == Some("ready") {
                let since = *ready.get_or_insert_with(Instant::now);
                match session::open(&order.conninfo, APPLICATION) {
                    Ok(mut session) => return self.check_new(&mut session),
                    Err(error) if since.elapsed() > START_PATIENCE => {
                        return Err(NewcomerError::Start(format!(
                            "it runs, but does not answer at --conninfo: {}; give the address there with --set \
                             listen_addresses=…, and see its pg_hba.conf",
                            error.words()
                        )));
                    }
                    Err(_) => {}
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// What pg_ctl's server has logged behind these bytes.
    fn said(&self, behind: u64) -> String {
        let bytes = fs::read(self.order.log()).unwrap_or_default();
        let new = usize::try_from(behind)
            .ok()
            .and_then(|behind| bytes.get(behind..));
        String::from_utf8_lossy(new.unwrap_or_default()).into_owned()
    }

    /// Whether the log of pg_ctl's server, which has no postmaster.pid, says that it is over.
    fn has_ended(&self, logged: u64) -> bool {
        self.order.start.is_none() && programs::reason(&self.said(logged)).is_some()
    }

    fn why(&self, logged: u64) -> String {
        let (text, log) = (self.said(logged), self.order.log());
        match (&self.order.start, programs::reason(&text)) {
            (None, Some(line)) => format!("its log {} says: {line}", log.display()),
            (None, None) => format!("see its log, {} or where log_directory says", log.display()),
            (Some(_), _) => "see the server's log; --start must start it in --data".to_owned(),
        }
    }

    fn check_new(&self, session: &mut Connection) -> Result<(), NewcomerError> {
        let wrong = NewcomerError::of(&self.order.node);
        let asked = "SELECT system_identifier, pg_is_in_recovery() FROM pg_control_system()";
        let row = session.query_one(asked).map_err(&wrong)?;
        let system: i64 = field(&row, 0).map_err(&wrong)?;
        let in_recovery: bool = field(&row, 1).map_err(&wrong)?;
        match (system == self.primary.system, in_recovery) {
            (true, true) => Ok(()),
            (false, _) => Err(NewcomerError::OtherCluster {
                node: format!("what answers at --conninfo of {}", self.order.node),
                primary: self.order.primary.name.clone(),
            }),
            (true, false) => Err(NewcomerError::Start(
                "what answers at --conninfo is no standby: does it lead to the primary?".to_owned(),
            )),
        }
    }

    /// Waits until the server streams and has replayed all that the primary has flushed by now.
    fn catch_up(&self) -> Result<(), NewcomerError> {
        let wrong = NewcomerError::of(&self.order.node);
        let target =
            flushed(&self.order.primary).map_err(NewcomerError::of(&self.order.primary.name))?;
        let mut session = session::open(&self.order.conninfo, APPLICATION).map_err(&wrong)?;
        let (mut last, mut moved) = (None, Instant::now());
        loop {
            let row = session
                .query_one(
                    "SELECT pg_last_wal_replay_lsn(), \
                     EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')",
                )
                .map_err(&wrong)?;
            let replayed: Option<Lsn> = field(&row, 0).map_err(&wrong)?;
            let streams: bool = field(&row, 1).map_err(&wrong)?;
            if streams && replayed.is_some_and(|replayed| replayed >= target) {
                return Ok(());
            }
            if replayed != last {
                (last, moved) = (replayed, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                return Err(NewcomerError::Follow(match streams {
                    true => "it streams, and has replayed nothing for 60 s: is replay paused or delayed?".to_owned(),
                    false => self.why(0),
                }));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

fn flushed(primary: &Place) -> Result<Lsn, ClientError> {
    let mut session = session::open(&primary.conninfo, APPLICATION)?;
    field(&session.query_one("SELECT pg_current_wal_flush_lsn()")?, 0)
}

/// Where the slot begins, if it is there.
fn slot(primary: &mut Connection, about: &About) -> Result<Option<Lsn>, ClientError> {
    let there = primary.slot(&about.slot)?;
    Ok(there.map(|slot| slot.restart))
}

fn make_slot(primary: &mut Connection, about: &About) -> Result<Lsn, ClientError> {
    let sql = "SELECT lsn FROM pg_create_physical_replication_slot($1, true)";
    let rows = primary.query_with(sql, &[&about.slot])?;
    field(rows.first().map_or(&[], Vec::as_slice), 0)
}

/// Writes the settings behind those of the peer, in place of what an earlier call wrote. False if they stand
/// there already.
fn configure(
    data: &Path,
    wanted: &BTreeMap<String, String>,
    again: bool,
) -> Result<bool, NewcomerError> {
    let path = data.join("postgresql.auto.conf");
    let io = |what| NewcomerError::io(what, &path);
    let was = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.map_err(io("read"))?,
    };
    let text = with_block(&was, wanted, again);
    if text == was {
        return Ok(false);
    }
    let beside = data.join("postgresql.auto.conf.lockstep");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &path)
    });
    written.map_err(io("write"))?;
    sync(data)?;
    Ok(true)
}

/// Makes the clone a standby.
fn make_standby(data: &Path) -> Result<(), NewcomerError> {
    let path = data.join("standby.signal");
    let made = OpenOptions::new().append(true).create(true).open(&path);
    let synced = made.and_then(|file| file.sync_all());
    synced.map_err(NewcomerError::io("write", &path))?;
    sync(data)
}

fn sync(data: &Path) -> Result<(), NewcomerError> {
    let synced = fs::File::open(data).and_then(|folder| folder.sync_all());
    synced.map_err(NewcomerError::io("write", data))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn another_process_with_the_number_of_a_dead_postmaster_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let lines = |pid: u32| format!("{pid}\n/data\n0\n5432\n/run\n*\n1 2\nready   \n");
        let file = data.join("postmaster.pid");
        fs::write(&file, lines(std::process::id())).unwrap();
        assert_eq!(postmaster(data), None);
        let mut server = Command::new("sleep")
            .arg("600")
            .current_dir(data)
            .spawn()
            .unwrap();
        fs::write(&file, lines(server.id())).unwrap();
        let found = postmaster(data);
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(found.unwrap().1, "ready");
        assert_eq!(postmaster(data), None);
    }
}
