//! Processes that are killed, from outside or by themselves at a failpoint: this test binary, started
//! again with one test alone.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockstep_apply::{Control, SpoolConfig};
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_replica::lifecycle::alter::alter;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::daemon::Daemon;
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::lifecycle::promote::promote;
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::failpoint;
use lockstep_replica::switchover::run::switchover;
use lockstep_replica::verify::{self};
use lockstep_spool::failpoint::Failpoint;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::apply_lab::{LONG, until};
use crate::{Told, create_options, following, to_alter, to_promote, to_switch, to_verify};

const DOES: &str = "LOCKSTEP_TEST_DOES";
const SOURCE: &str = "LOCKSTEP_TEST_SOURCE";
const TARGET: &str = "LOCKSTEP_TEST_TARGET";
const WRITERS: &str = "LOCKSTEP_TEST_WRITERS";
const SPOOL: &str = "LOCKSTEP_TEST_SPOOL";
const SPOOL_LIMIT: &str = "LOCKSTEP_TEST_SPOOL_LIMIT";
const AT: &str = "LOCKSTEP_TEST_FAILPOINT";
const BEFORE: &str = "LOCKSTEP_TEST_FAILPOINT_BEFORE";
const WHILE: &str = "LOCKSTEP_TEST_FAILPOINT_WHILE";

/// Before it tries again, as `replica run` does after longer.
const PAUSE: Duration = Duration::from_millis(50);

/// Looks at a process between two provocations: what is provoked while it starts only has to be applied.
const PROVOKED_AFTER: u32 = 5;

/// What a process says last.
const DIES: &str = "dies at ";

/// A backend waits for an advisory lock.
const WAITS: &str = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

/// What a process does with replica r.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    Create,
    Follow,
    /// Follows, then reads a file again that says something else.
    Reload,
    Verify,
    Promote,
    /// Switches over, with replica back for the way back.
    Switchover,
    /// Follows with replica back.
    FollowBack,
    /// Alters which tables there are, as `to_alter` says.
    Alter,
    Drop,
}

const ALL: [(Does, &str); 9] = [
    (Does::Create, "create"),
    (Does::Follow, "follow"),
    (Does::Reload, "reload"),
    (Does::Verify, "verify"),
    (Does::Promote, "promote"),
    (Does::Switchover, "switchover"),
    (Does::FollowBack, "follow-back"),
    (Does::Alter, "alter"),
    (Does::Drop, "drop"),
];

/// Where a process is to die.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    pub at: Failpoint,
    /// Times that the process goes on there before it dies.
    pub before: u32,
    /// The process goes on there, and dies once a backend of the target waits for an advisory lock.
    pub while_waiting: bool,
}

impl Death {
    pub fn at(at: Failpoint, before: u32) -> Self {
        Self {
            at,
            before,
            while_waiting: false,
        }
    }
}

/// How to start processes.
#[derive(Debug, Clone)]
pub struct Starts {
    pub source: Conninfo,
    pub target: Conninfo,
    pub writers: usize,
    pub spool: Option<SpoolConfig>,
    pub log: PathBuf,
}

/// A process that does something until it has ended, or is killed when this is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Starts {
    pub fn start(&self, does: Does, death: Option<Death>) -> Process {
        let log = File::options().create(true).append(true).open(&self.log);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "failpoints::process::entry", "--nocapture"]);
        let named = ALL.iter().find(|(one, _)| *one == does).unwrap().1;
        command.env(DOES, named);
        command.env(SOURCE, self.source.to_string());
        command.env(TARGET, self.target.to_string());
        command.env(WRITERS, self.writers.to_string());
        if let Some(spool) = &self.spool {
            command.env(SPOOL, &spool.folder);
            command.env(SPOOL_LIMIT, spool.limit.to_string());
        }
        if let Some(death) = death {
            command.env(AT, death.at.name());
            command.env(BEFORE, death.before.to_string());
            if death.while_waiting {
                command.env(WHILE, "waiting");
            }
        }
        // What a killed process leaves behind goes with the lab.
        command.env("TMPDIR", self.log.parent().unwrap());
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Process {
            child: command.stderr(log.unwrap()).spawn().unwrap(),
            log: self.log.clone(),
        }
    }
}

impl Process {
    /// Whether it has died at a failpoint. An error of its own is none.
    pub fn has_died(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else {
            return false;
        };
        let said = said(&self.log);
        assert_eq!(
            status.signal(),
            Some(Signal::SIGKILL as i32),
            "{status} {said}"
        );
        true
    }

    /// Waits until it has died there; `provoke` happens meanwhile, some times a second.
    pub fn dies_at(&mut self, at: Failpoint, mut provoke: impl FnMut()) {
        let mut looks = 0..;
        until(&format!("that it dies at {}", at.name()), || {
            if looks
                .next()
                .is_some_and(|look: u32| look % PROVOKED_AFTER == 0)
            {
                provoke();
            }
            self.has_died()
        });
        assert_eq!(self.died_at(), at.name(), "{}", said(&self.log));
    }

    /// Where it has died. Another process may have said something since.
    pub fn died_at(&self) -> String {
        let said = said(&self.log);
        let died = said.rsplit_once(DIES);
        let name = died.and_then(|(_, rest)| rest.lines().next());
        name.unwrap_or_default().to_owned()
    }

    /// Waits until it has ended. True if it has succeeded.
    pub fn succeeds(&mut self) -> bool {
        until("that it ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What processes have said.
pub fn said(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

fn die(at: Failpoint) {
    eprintln!("{DIES}{}", at.name());
    kill(Pid::this(), Signal::SIGKILL).unwrap();
    loop {
        std::thread::park();
    }
}

/// Plants what the environment says.
fn plant(target: &Conninfo) {
    let Ok(name) = std::env::var(AT) else {
        return;
    };
    let at = failpoint::all().find(|one| one.name() == name).unwrap();
    let before = std::env::var(BEFORE).unwrap().parse().unwrap();
    let target = target.clone();
    let is_planted = match std::env::var_os(WHILE) {
        None => at.plant(before, move || die(at)),
        Some(_) => at.plant(before, move || {
            let target = target.clone();
            std::thread::spawn(move || {
                let session = Connection::connect(&target, Purpose::Sql, "lockstep test");
                let mut session = session.unwrap();
                while session.query(WAITS).unwrap().is_empty() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                die(at);
            });
        }),
    };
    assert!(is_planted);
}

/// What a [`Process`] does; in an ordinary run of the tests there is nothing to do.
#[test]
fn entry() {
    let Ok(does) = std::env::var(DOES) else {
        return;
    };
    // It ends with the test that has started it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let end = |name: &str| Conninfo::parse(&std::env::var(name).unwrap()).unwrap();
    let (source, target) = (end(SOURCE), end(TARGET));
    plant(&target);
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let what = Following {
        memory: 1024 * 1024,
        writers: usize::try_from(number(WRITERS)).unwrap().into(),
        spool: std::env::var_os(SPOOL).map(|folder| SpoolConfig {
            folder: folder.into(),
            limit: number(SPOOL_LIMIT),
        }),
        ..following(&target)
    };
    match ALL.iter().find(|(_, name)| *name == does).unwrap().0 {
        Does::Create => {
            create(&create_options(source, target), &mut Told::default()).unwrap();
        }
        Does::Follow => loop {
            if let Err(error) = follow(&what, &Control::default()) {
                eprintln!("{error}");
            }
            std::thread::sleep(PAUSE);
        },
        Does::Reload => {
            let mut daemon = Daemon::default();
            daemon.follow(std::slice::from_ref(&what));
            daemon.follow(&[Following {
                writers: 2.into(),
                ..what
            }]);
            std::thread::sleep(LONG);
        }
        Does::Verify => {
            let what = to_verify(target);
            verify::replica(&what, &mut |_| {}).unwrap();
        }
        Does::Promote => {
            promote(&to_promote(target), &mut |_| {}).unwrap();
        }
        Does::Switchover => {
            switchover(&to_switch(target), &mut Told::default()).unwrap();
        }
        Does::FollowBack => {
            let what = Following {
                name: "back".to_owned(),
                ..what
            };
            follow(&what, &Control::default()).unwrap();
        }
        Does::Alter => {
            alter(&to_alter(target), &mut Told::default()).unwrap();
        }
        Does::Drop => {
            remove("r", &target, None).unwrap();
        }
    }
}
