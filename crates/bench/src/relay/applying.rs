//! One round of applying: a subscription or a replica that was stopped during a backlog catches up
//! from a relay that holds all of it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server};

use super::follower::{Follower, REPLICA};
use super::limit::Changes;
use super::publisher;
use super::scene::{Scene, Way};
use super::subscriber::{Cores, Subscriber};
use crate::contents::{Contents, check_equal, contents};
use crate::slow_calls::SlowCalls;
use crate::{BenchError, Result};

/// What writes the backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Writes {
    /// pgbench's TPC-B-like transactions, of three updates and an insert
    Tpcb,
    /// Transactions that insert one row
    Insert,
    /// One transaction that inserts all rows
    Giant,
    /// Transactions that update 1,000 rows
    Update,
    /// Transactions that delete 1,000 rows
    Delete,
    /// Updates of rows all over a table, of a target that needs 1 ms longer for each read
    SlowTarget,
}

impl Writes {
    pub const ALL: [Self; 6] = [
        Self::Tpcb,
        Self::Insert,
        Self::Giant,
        Self::Update,
        Self::Delete,
        Self::SlowTarget,
    ];

    /// The name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tpcb => "tpcb",
            Self::Insert => "insert",
            Self::Giant => "giant",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::SlowTarget => "slow-target",
        }
    }

    /// True if rows must be there before the backlog.
    pub(super) fn changes_old_rows(self) -> bool {
        matches!(self, Self::Update | Self::Delete | Self::SlowTarget)
    }
}

/// Changes of one TPC-B-like transaction.
const ROWS_OF_TPC_B: u32 = 4;

/// Rows of one transaction of updates or deletes.
const TOGETHER: u32 = 1_000;

/// Factor by which case `slow-target` has fewer changes than the others: each waits for a read or two.
const FEWER: u32 = 20;

/// Rows of a transaction in case `slow-target`, and how far they are apart: the next is on another page, and
/// rows of one page come far apart in time.
const APART_TOGETHER: u32 = 100;
const APART: u32 = 7_919;

/// Time that is added to each read of the target in case `slow-target`.
const READ_DELAY: Duration = Duration::from_millis(1);

/// What the rows of table `large` hold.
const VALUES: &str = "1, 'a row of the usual length'";

/// Most starts of a consumer until the relay has its slot.
const MOST_STARTS: u32 = 10;

/// Who applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applier {
    /// A subscription.
    Stock,
    /// `lockstep replica run`, with so many writers, or with those that it has by default.
    Lockstep { writers: Option<u32> },
    /// One session that has all changes in memory, in the order of their keys: what the server can do.
    Limit,
}

/// One round.
#[derive(Debug, Clone)]
pub struct ApplySpec {
    pub applier: Applier,
    pub writes: Writes,
    /// Changes of the backlog, about.
    pub rows: u32,
    /// Clients that write small transactions.
    pub clients: u32,
    /// pgbench scale.
    pub scale: u32,
    /// The program `lockstep`.
    pub program: PathBuf,
    pub relay: Way,
}

/// What a round measured.
#[derive(Debug, Clone)]
pub struct ApplyOutcome {
    /// Changes in the backlog.
    pub rows: u64,
    /// Time from the start until the target had everything.
    pub seconds: f64,
    /// CPU of the target's server and of the applying process.
    pub cpu_s: f64,
    /// CPU of the applying process, if it is not part of the server.
    pub applier_cpu_s: Option<f64>,
    pub relay_cpu_s: Option<f64>,
    /// Seconds in which a core did nothing, both cores together.
    pub idle_s: Option<f64>,
}

/// The target, stopped or not.
enum Target {
    Stock(Subscriber),
    Lockstep(Follower),
}

/// What is done to a stopped target, and what that costs.
struct Clock<'a> {
    lab: &'a Lab,
    started: Instant,
    idle: Option<f64>,
}

impl<'a> Clock<'a> {
    fn start(lab: &'a Lab) -> Self {
        Self {
            lab,
            idle: lab.pinning().idle_s(Side::Both),
            started: Instant::now(),
        }
    }

    /// Seconds since the start, and those in which a core did nothing.
    fn read(&self) -> (f64, Option<f64>) {
        let seconds = self.started.elapsed().as_secs_f64();
        let idle = self.lab.pinning().idle_s(Side::Both).zip(self.idle);
        (seconds, idle.map(|(after, before)| after - before))
    }
}

impl Target {
    /// Makes it a copy of the primary, and connects it to the relay.
    fn create(lab: &Lab, scene: &Scene, spec: &ApplySpec) -> Result<Self> {
        match spec.applier {
            Applier::Stock => {
                let target = copied(lab, spec)?;
                // What makes stock fastest on each major. Streaming makes no difference behind a
                // relay, which sends whole transactions.
                let options = match lab.package().major().get() {
                    16.. => ", binary = true, streaming = parallel",
                    _ => ", binary = true",
                };
                target.subscribe_with(scene.endpoint(), options)?;
                Ok(Self::Stock(target))
            }
            Applier::Limit => Err(BenchError::Unusable("nothing applies".to_owned())),
            Applier::Lockstep { writers } => {
                let source = scene.endpoint();
                let server = Subscriber::empty(lab)?;
                let mut target = Follower::create(lab, &spec.program, source, server, writers)?;
                target.start(lab)?;
                Ok(Self::Lockstep(target))
            }
        }
    }

    fn server(&self) -> &Subscriber {
        match self {
            Self::Stock(server) => server,
            Self::Lockstep(follower) => follower.server(),
        }
    }

    fn server_mut(&mut self) -> &mut Subscriber {
        match self {
            Self::Stock(server) => server,
            Self::Lockstep(follower) => follower.server_mut(),
        }
    }

    fn start(&mut self, lab: &Lab) -> Result<()> {
        match self {
            Self::Stock(server) => server.enable(),
            Self::Lockstep(follower) => follower.start(lab),
        }
    }

    fn stop(&mut self) -> Result<()> {
        match self {
            Self::Stock(server) => server.disable(),
            Self::Lockstep(follower) => follower.stop(),
        }
    }

    fn await_mark(&mut self, primary: &Server) -> Result<()> {
        match self {
            Self::Stock(server) => server.await_mark(primary),
            Self::Lockstep(follower) => follower.await_mark(primary),
        }
    }

    fn applier_cpu_s(&self) -> Option<f64> {
        match self {
            Self::Stock(_) => None,
            Self::Lockstep(follower) => Some(follower.cpu_s()),
        }
    }

    fn cpu_s(&self) -> f64 {
        self.server().cpu_s() + self.applier_cpu_s().unwrap_or(0.0)
    }

    fn remove(self) -> Result<()> {
        match self {
            Self::Stock(server) => server.remove(),
            Self::Lockstep(follower) => follower.remove(),
        }
    }
}

/// Rows of table `large` that are there before the backlog.
fn filling(rows: u32) -> String {
    format!("INSERT INTO large SELECT n, {VALUES} FROM generate_series(1, {rows}) n")
}

/// A server with what the primary has before the backlog.
fn copied(lab: &Lab, spec: &ApplySpec) -> Result<Subscriber> {
    let target = Subscriber::start(lab, 1, spec.scale, Cores::Every)?;
    if spec.writes.changes_old_rows() {
        target.run(&filling(spec.rows))?;
    }
    Ok(target)
}

/// What the backlog has made of the primary's tables.
fn changes<'a>(primary: &'a Server, spec: &ApplySpec) -> Result<Changes<'a>> {
    let mut changes = Changes::new(primary)?;
    match spec.writes {
        Writes::Insert | Writes::Giant => changes.inserted("large")?,
        Writes::Update | Writes::SlowTarget => changes.updated("large", "id", "a", 1)?,
        Writes::Delete => changes.deleted("large", "id", spec.rows)?,
        Writes::Tpcb => {
            changes.inserted("pgbench_history")?;
            changes.updated("pgbench_accounts", "aid", "abalance", 0)?;
            changes.updated("pgbench_tellers", "tid", "tbalance", 0)?;
            changes.updated("pgbench_branches", "bid", "bbalance", 0)?;
        }
    }
    Ok(changes)
}

/// Writes the backlog's rows into a server at once.
fn run_limit(lab: &Lab, primary: &Server, spec: &ApplySpec) -> Result<ApplyOutcome> {
    let mut target = copied(lab, spec)?;
    let rows = write(lab, primary, spec)?;
    let changes = changes(primary, spec)?;
    let slow = slow_reads(lab, spec, &mut target)?;
    target.write_out()?;
    let (cpu_before, clock) = (target.cpu_s(), Clock::start(lab));
    changes.write(&target)?;
    let (seconds, idle_s) = clock.read();
    let cpu_s = (target.cpu_s() - cpu_before).max(0.0);
    drop(slow);
    check(primary, &target)?;
    target.remove()?;
    Ok(ApplyOutcome {
        rows,
        seconds,
        cpu_s,
        applier_cpu_s: None,
        relay_cpu_s: None,
        idle_s,
    })
}

/// Makes the target's reads slow, if the case is about that.
fn slow_reads(lab: &Lab, spec: &ApplySpec, target: &mut Subscriber) -> Result<Option<SlowCalls>> {
    if spec.writes != Writes::SlowTarget {
        return Ok(None);
    }
    target.restart_with_little_memory()?;
    target.slow_reads(lab, READ_DELAY).map(Some)
}

/// Runs a round on a primary that [`publisher::prepare`] has readied.
pub fn run(lab: &Lab, primary: &Server, spec: &ApplySpec) -> Result<ApplyOutcome> {
    publisher::refresh(lab, primary, spec.scale)?;
    if spec.writes.changes_old_rows() {
        primary.execute(&filling(spec.rows))?;
    }
    if spec.applier == Applier::Limit {
        return run_limit(lab, primary, spec);
    }
    let mut scene = Scene::open(lab, primary, &spec.relay)?;
    let mut target = Target::create(lab, &scene, spec)?;
    let slot = match spec.applier {
        Applier::Lockstep { .. } => format!("lockstep\\_{REPLICA}\\_%"),
        Applier::Stock | Applier::Limit => "s1".to_owned(),
    };
    hand_over(lab, primary, &mut target, &slot)?;
    let rows = write(lab, primary, spec)?;
    let goal = publisher::mark(primary)?;
    publisher::await_relay(primary, goal)?;
    scene.check()?;
    let slow = slow_reads(lab, spec, target.server_mut())?;
    target.server().write_out()?;
    let (cpu_before, meter, clock) = (target.cpu_s(), scene.meter(primary), Clock::start(lab));
    target.start(lab)?;
    target.await_mark(primary)?;
    let (seconds, idle_s) = clock.read();
    let outcome = ApplyOutcome {
        rows,
        seconds,
        cpu_s: (target.cpu_s() - cpu_before).max(0.0),
        applier_cpu_s: target.applier_cpu_s(),
        relay_cpu_s: scene.meter(primary).since(&meter).relay_cpu_s,
        idle_s,
    };
    drop(slow);
    scene.check()?;
    check(primary, target.server())?;
    target.remove()?;
    scene.close(primary)?;
    drop_publications(primary)?;
    Ok(outcome)
}

/// Starts and stops the consumer until the relay has its slot, which the primary then lists no
/// more: until then it is the primary that would send the backlog.
fn hand_over(lab: &Lab, primary: &Server, target: &mut Target, slot: &str) -> Result<()> {
    let sql = format!("SELECT 'there' FROM pg_replication_slots WHERE slot_name LIKE '{slot}'");
    for _ in 0..MOST_STARTS {
        publisher::mark(primary)?;
        target.await_mark(primary)?;
        target.stop()?;
        if primary.query_text(&sql)?.is_none() {
            return Ok(());
        }
        target.start(lab)?;
    }
    let words = "the relay does not take over the consumer's slot";
    Err(BenchError::Unusable(words.to_owned()))
}

/// Writes the backlog. Returns its changes.
fn write(lab: &Lab, primary: &Server, spec: &ApplySpec) -> Result<u64> {
    let rows = spec.rows;
    match spec.writes {
        Writes::Tpcb => {
            let transactions = rows.div_ceil(ROWS_OF_TPC_B);
            let ran = publisher::run_transactions(lab, primary, spec.clients, transactions)?;
            return Ok(ran * u64::from(ROWS_OF_TPC_B));
        }
        Writes::Insert => return inserts(lab, primary, spec),
        Writes::Giant => primary.execute(&filling(rows))?,
        Writes::Update => primary.execute(&in_transactions(rows, "UPDATE large SET a = a + 1"))?,
        Writes::Delete => primary.execute(&in_transactions(rows, "DELETE FROM large"))?,
        Writes::SlowTarget => return apart(primary, rows),
    }
    Ok(u64::from(rows))
}

/// A statement for all rows of table `large`, some of them in each transaction.
fn in_transactions(rows: u32, statement: &str) -> String {
    let last = rows.div_ceil(TOGETHER) - 1;
    format!(
        "DO $$ BEGIN FOR n IN 0..{last} LOOP \
         {statement} WHERE id > n * {TOGETHER} AND id <= (n + 1) * {TOGETHER}; \
         COMMIT; END LOOP; END $$"
    )
}

/// Updates some rows of table `large`, which has `rows`, in transactions of few. Returns how many.
fn apart(primary: &Server, rows: u32) -> Result<u64> {
    let transactions = rows.div_ceil(FEWER).div_ceil(APART_TOGETHER);
    let changed = transactions * APART_TOGETHER;
    primary.execute(&format!(
        "DO $$ BEGIN FOR n IN 0..{transactions} - 1 LOOP \
         UPDATE large SET a = a + 1 WHERE id IN (\
           SELECT 1 + (k::bigint * {APART}) % {rows} \
           FROM generate_series(n * {APART_TOGETHER}, (n + 1) * {APART_TOGETHER} - 1) k); \
         COMMIT; END LOOP; END $$"
    ))?;
    Ok(u64::from(changed))
}

fn inserts(lab: &Lab, primary: &Server, spec: &ApplySpec) -> Result<u64> {
    primary.execute("DROP SEQUENCE IF EXISTS large_id; CREATE SEQUENCE large_id")?;
    let script = format!("INSERT INTO large VALUES (nextval('large_id'), {VALUES});\n");
    let script = lab.write_file("insert.sql", &script)?;
    let each = spec.rows.div_ceil(spec.clients);
    let mut pgbench = lab.pgbench(primary, SUPERUSER);
    pgbench.args(["--no-vacuum", "--protocol", "prepared"]);
    pgbench.args(["--client", &spec.clients.to_string()]);
    pgbench.args(["--transactions", &each.to_string()]);
    pgbench.arg("--file").arg(script);
    lab.launcher().run(pgbench)?;
    Ok(u64::from(each) * u64::from(spec.clients))
}

/// An error unless the target has what the primary has. Table `beat` is told apart by the time at
/// which a subscription received each row.
fn check(primary: &Server, target: &Subscriber) -> Result<()> {
    let refused = |error| BenchError::from(primary.refused("refused a query", &error));
    let mut session = primary.connect(SUPERUSER, "lockstep-lab bench")?;
    let mut source = contents(&mut session).map_err(refused)?;
    let mut there = target.contents()?;
    for held in [&mut source, &mut there] {
        held.retain(|table: &Contents| table.table != "beat");
    }
    check_equal(&source, &there)
}

/// Drops the publications of replicas that are gone.
fn drop_publications(primary: &Server) -> Result<()> {
    Ok(primary.execute(&format!(
        "DO $$ DECLARE name text; BEGIN \
         FOR name IN SELECT pubname FROM pg_publication WHERE pubname LIKE 'lockstep\\_{REPLICA}\\_%' \
         LOOP EXECUTE format('DROP PUBLICATION %I', name); END LOOP; END $$"
    ))?)
}
