//! A source and a target, in one server or two, and a replica that applies between them.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_apply::{self as apply, ApplyError, Control, Phase, Starts};
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server};
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::state::{Replica, ReplicaState};

use crate::{begun, primary};

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(300);

pub const SLOT: &str = "apply";
pub const NAME: &str = "r1";

/// Ends a replica when a test ends, also if that fails: a scope waits for its threads.
pub struct Ends<'a>(pub &'a Control);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Follows while `work` runs, and stops.
pub fn while_following(what: &Following, work: impl FnOnce(&Control)) -> Result<(), ReplicaError> {
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let following = scope.spawn(|| follow(what, &control));
        work(&control);
        control.stop();
        following.join().unwrap()
    })
}

/// Waits until everything is applied that is committed on the source now.
pub fn catch_up(source: &Server, control: &Control) {
    let end = source.flush_lsn().unwrap();
    let reached = control.wait_for(LONG, |stats| stats.applied >= end);
    assert!(reached, "{end}: {:?}", control.stats());
}

/// Waits until a change does not fit, and returns the error.
pub fn blocked(control: &Control) -> String {
    let blocked = control.wait_for(LONG, |stats| stats.phase == Phase::Blocked);
    assert!(blocked, "{:?}", control.stats());
    control.stats().error.unwrap()
}

/// What apply asks about tables, which start there.
pub fn opened(settings: &apply::Settings, starts: &Starts) -> Result<apply::Opened, ApplyError> {
    let name = &settings.application_name;
    let ready = || -> lockstep_client::Result<_> {
        let mut session = apply::sessions::open(&settings.target, Purpose::Sql, name)?;
        apply::catalog::ready(&mut session)?;
        Ok(session)
    };
    Ok((ready().map_err(ApplyError::Target)?, starts.clone()))
}

pub struct Pair {
    pub source: Server,
    pub target: Server,
    running: Option<(Control, JoinHandle<apply::error::Result<()>>)>,
    pub memory: usize,
    pub writers: apply::Writers,
    // Last: it ends what still runs.
    _lab: Lab,
}

impl Pair {
    /// Both ends with this schema, and a slot that has everything from here on.
    pub fn new(schema: &str) -> Self {
        Self::apart(schema, schema)
    }

    /// A source and a target with different schemas.
    pub fn apart(on_source: &str, on_target: &str) -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (primary(&lab, "source"), primary(&lab, "target"));
        source.run(on_source);
        target.run(on_target);
        source.run("CREATE PUBLICATION everything FOR ALL TABLES");
        let info = conninfo(&source);
        let mut maker = Connection::connect(&info, Purpose::Replication, "test").unwrap();
        maker.create_slot(SLOT, "pgoutput", false, false).unwrap();
        let replica = Replica {
            system_id: maker.identify().unwrap().system.to_string(),
            ..begun(NAME, SLOT)
        };
        let mut state = ReplicaState::open(&conninfo(&target)).unwrap();
        state.add(&replica).unwrap();
        Self {
            source,
            target,
            running: None,
            memory: apply::MEMORY,
            writers: 1.into(),
            _lab: lab,
        }
    }

    pub fn settings(&self) -> apply::Settings {
        apply::Settings {
            source: conninfo(&self.source),
            target: conninfo(&self.target),
            slot: SLOT.to_owned(),
            publications: vec!["everything".to_owned()],
            ddl: false,
            published: None,
            taken: None,
            origin: "replica_r1".to_owned(),
            replica: NAME.to_owned(),
            application_name: NAME.to_owned(),
            memory: self.memory,
            writers: self.writers,
        }
    }

    /// Starts to apply every table.
    pub fn start(&mut self) -> Control {
        self.start_from(Starts::default())
    }

    pub fn start_from(&mut self, starts: Starts) -> Control {
        let control = Control::default();
        let (settings, given) = (self.settings(), control.clone());
        let thread = std::thread::spawn(move || {
            let mut open = || opened(&settings, &starts);
            apply::run(&settings, None, &given, &mut open)
        });
        self.running = Some((control.clone(), thread));
        control
    }

    pub fn stop(&mut self) {
        if let Some((control, thread)) = self.running.take() {
            control.stop();
            thread.join().unwrap().unwrap();
        }
    }

    fn control(&self) -> &Control {
        &self.running.as_ref().expect("it applies").0
    }

    /// Waits until everything is applied that is committed on the source now.
    pub fn catch_up(&self) {
        catch_up(&self.source, self.control());
    }

    /// Waits until a change does not fit, and returns the error.
    pub fn blocked(&self) -> String {
        blocked(self.control())
    }

    /// Catches up, and compares what a query says on both ends.
    pub fn assert_same(&self, query: &str) {
        self.catch_up();
        let (source, target) = (rows(&self.source, query), rows(&self.target, query));
        assert!(
            !source.is_empty(),
            "{query} has no rows, so nothing is compared"
        );
        assert_eq!(source, target, "{query}");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some((control, thread)) = self.running.take() {
            control.stop();
            let _ = thread.join();
        }
    }
}

pub fn conninfo(server: &Server) -> Conninfo {
    Conninfo::parse(&server.conninfo(SUPERUSER)).unwrap()
}

pub fn sql(server: &Server) -> Connection {
    Connection::connect(&conninfo(server), Purpose::Sql, "test").unwrap()
}

pub fn on(server: &Server, statements: &str) {
    sql(server).execute(statements).unwrap();
}

pub fn rows(server: &Server, query: &str) -> Vec<Vec<Option<String>>> {
    server.rows_in(DATABASE, query).unwrap()
}

/// Waits until `happened`.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < LONG, "{what}");
        pause();
    }
}

/// Runs each of these statements as a transaction on the source.
pub fn run(pair: &Pair, statements: &[&str]) {
    let mut source = sql(&pair.source);
    for statement in statements {
        source.execute(statement).unwrap();
    }
}
