//! What memory `lockstep replica run` takes.

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;

use crate::replica::{
    BETWEEN_STATUS, Running, create_args, in_app, lockstep, output, pair, sql, status, until,
};

/// Limit of the process's memory, and size of a row.
const LIMIT_MB: u64 = 8;
const ROW_MB: u64 = 10;

const WRITERS: u64 = 4;

/// Rows that are written at a time, each in a transaction of its own.
const ROWS: u32 = 6;

/// Memory by docs/replica-applying.md: what the process takes without any row, and how many large rows it
/// holds beyond the limit; more with a spool, and more for each writer that has sent one as a parameter.
const FIXED_MB: u64 = 50;
const RECEIVED: u64 = 6;
const SPOOLED: u64 = 3;

struct Applying {
    running: Running,
    source: Server,
    target: Server,
    to: String,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Applying {
    fn new(writers: u64, spool: bool) -> Self {
        let (lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY, v text, n int)");
        let from = in_app(&source);
        let to = in_app(&target);
        let created = output(&create_args(&from, &to));
        assert!(created.status.success(), "{created:?}");
        let limit = format!("{LIMIT_MB}MB");
        let mut command = lockstep(&["run", "r", "--target", &to, "--memory", &limit]);
        command.args(["--writers", &writers.to_string()]);
        if spool {
            let folder = lab.folder().join("spool").display().to_string();
            command.args(["--spool-dir", &folder, "--spool-limit", "10GB"]);
        }
        let log = std::fs::File::create(lab.folder().join("log")).unwrap();
        Self {
            running: Running(command.stderr(log).spawn().unwrap()),
            source,
            target,
            to,
            lab,
        }
    }

    /// Executes a statement for each row while the target's table is locked, so that all that may be in
    /// memory is; then waits until the target has `arrived` rows.
    fn change(&mut self, statement: &dyn Fn(u32) -> String, arrived: &str) {
        let mut lock = sql(&self.target);
        lock.execute("BEGIN; LOCK TABLE t IN SHARE MODE").unwrap();
        let mut source = sql(&self.source);
        for row in 1..=ROWS {
            source.execute(&statement(row)).unwrap();
        }
        while status(&self.to)["replicas"][0]["error"].is_null() {
            assert_eq!(self.running.0.try_wait().unwrap(), None, "{}", self.log());
            std::thread::sleep(BETWEEN_STATUS);
        }
        drop(lock);
        let rows = ROWS.to_string();
        until(&self.target, arrived, &rows, &mut self.running.0);
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.lab.folder().join("log")).unwrap()
    }

    /// The most memory that the process has had.
    fn peak_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.0.id()));
        let status = status.unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.unwrap().trim().trim_end_matches(" kB");
        peak.parse::<u64>().unwrap() / 1024
    }
}

/// Most memory while rows are inserted.
fn most_mb(rows: u64) -> u64 {
    LIMIT_MB + rows * ROW_MB + FIXED_MB
}

fn insert(applying: &mut Applying, most: u64) {
    let bytes = ROW_MB << 20;
    let insert = |row| format!("INSERT INTO t VALUES ({row}, repeat('x', {bytes}), 0)");
    applying.change(&insert, "SELECT count(*)::text FROM t");
    let peak = applying.peak_mb();
    println!("{peak} MB to insert");
    assert!(peak < most, "{peak} MB");
}

#[test]
fn large_rows_take_no_more_memory_than_is_said() {
    let mut applying = Applying::new(WRITERS, false);
    insert(&mut applying, most_mb(RECEIVED));
    let bytes = ROW_MB << 20;
    let update = |row| format!("UPDATE t SET v = repeat('y', {bytes}), n = 1 WHERE id = {row}");
    applying.change(&update, "SELECT count(*)::text FROM t WHERE n = 1");
    let peak = applying.peak_mb();
    println!("{peak} MB to update");
    assert!(peak < most_mb(RECEIVED + WRITERS), "{peak} MB");
}

#[test]
fn large_rows_of_a_spool_take_no_more_memory_than_is_said() {
    let mut applying = Applying::new(WRITERS, true);
    insert(&mut applying, most_mb(RECEIVED + SPOOLED));
}
