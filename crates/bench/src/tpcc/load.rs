//! Loading: create, fill, index, each in as many sessions as wanted.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::TpccError;
use super::tools::Tools;
use super::{MAX_WAREHOUSES, SCHEMA, TABLES, fill, schema};
use crate::{BenchError, Result};

/// What to load and how.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Warehouses, 1 to [`MAX_WAREHOUSES`].
    pub warehouses: u32,
    /// Sessions at a time.
    pub jobs: u32,
    /// Drop the nine tables first if they exist.
    pub replace: bool,
}

/// A piece of work for one session.
#[derive(Debug)]
struct Task {
    what: String,
    sql: String,
}

/// Loads the tables with the specification's cardinalities. `done` hears how many of
/// how many steps are over, on threads of the load.
pub fn load(
    tools: &Tools,
    conninfo: &str,
    options: &LoadOptions,
    done: &(dyn Fn(usize, usize) + Sync),
) -> Result<()> {
    let probe = Probe::of(tools, conninfo)?;
    probe.refuse_read_only()?;
    if let (Some(table), false) = (probe.table, options.replace) {
        let table = format!("{SCHEMA}.{table}");
        return Err(TpccError::AlreadyLoaded { table }.into());
    }
    let drop: String = TABLES
        .iter()
        .map(|table| format!("DROP TABLE IF EXISTS {SCHEMA}.{table};\n"))
        .collect();
    let create = format!(
        "SET client_min_messages = warning;\nBEGIN;\n{}{}COMMIT;\n",
        if options.replace { drop.as_str() } else { "" },
        schema::CREATE
    );
    tools.psql(conninfo, "creating the tables", &create)?;

    let warehouses = options.warehouses.clamp(1, MAX_WAREHOUSES);
    let (filling, indexing) = (fill_tasks(warehouses), index_tasks());
    let fills = filling.len();
    // The last step is the one that says that all is loaded.
    let total = fills + indexing.len() + 1;
    let jobs = options.jobs;
    run_tasks(tools, conninfo, jobs, filling, &|n| done(n, total))?;
    run_tasks(tools, conninfo, jobs, indexing, &|n| done(fills + n, total))?;
    let last = index_task("warehouse");
    tools.psql(conninfo, &last.what, &last.sql)?;
    done(total, total);
    Ok(())
}

/// The largest pieces first within a warehouse, so that sessions end together.
fn fill_tasks(warehouses: u32) -> VecDeque<Task> {
    let mut tasks = VecDeque::new();
    let mut add = |what: String, sql: String| {
        let number = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
        tasks.push_back(Task {
            what,
            sql: fill::session(number) + &sql,
        });
    };
    add("filling item".to_owned(), fill::items());
    let home = fill::warehouses(warehouses);
    add("filling warehouse and district".to_owned(), home);
    for w in 1..=warehouses {
        add(format!("filling orders of warehouse {w}"), fill::orders(w));
        add(format!("filling stock of warehouse {w}"), fill::stock(w));
        let customers = fill::customers(w);
        add(format!("filling customer of warehouse {w}"), customers);
    }
    tasks
}

/// Keys, indexes and statistics of all tables but `warehouse`, the largest first.
fn index_tasks() -> VecDeque<Task> {
    const LARGEST_FIRST: [&str; 8] = [
        "order_line",
        "stock",
        "customer",
        "orders",
        "history",
        "item",
        "new_order",
        "district",
    ];
    LARGEST_FIRST.into_iter().map(index_task).collect()
}

fn index_task(table: &str) -> Task {
    // The vacuum sets hint bits and the visibility map, so that a run does not begin
    // with writing them, and comes before the key of `warehouse`, which is the mark
    // of a complete load.
    Task {
        what: format!("indexing {table}"),
        sql: format!(
            "VACUUM (ANALYZE) {SCHEMA}.{table};\n{}\n",
            schema::indexes(table)
        ),
    }
}

/// Runs `tasks` in up to `jobs` sessions at a time. After a failure nothing new starts.
fn run_tasks(
    tools: &Tools,
    conninfo: &str,
    jobs: u32,
    tasks: VecDeque<Task>,
    done: &(dyn Fn(usize) + Sync),
) -> Result<()> {
    let total = tasks.len();
    let workers = total.min(jobs.max(1) as usize);
    let queue = Mutex::new(tasks);
    let finished = Mutex::new(0);
    let failure: Mutex<Option<BenchError>> = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                // The queue is not locked while a task runs.
                let next = || locked(&queue).pop_front();
                while let Some(task) = next() {
                    match tools.psql(conninfo, &task.what, &task.sql) {
                        Ok(_) => {
                            let mut finished = locked(&finished);
                            *finished += 1;
                            done(*finished);
                        }
                        Err(error) => {
                            locked(&queue).clear();
                            locked(&failure).get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a database looks like before we do anything.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// One of our tables that exists.
    table: Option<String>,
    loaded: bool,
    in_recovery: bool,
    read_only: bool,
}

impl Probe {
    pub(super) fn of(tools: &Tools, conninfo: &str) -> Result<Self> {
        let row = tools.psql(conninfo, "looking for the tables", &schema::probe())?;
        Self::parse(&row).ok_or_else(|| {
            TpccError::Answer {
                program: "psql",
                answer: row.trim().to_owned(),
            }
            .into()
        })
    }

    fn parse(row: &str) -> Option<Self> {
        let mut fields = row.trim().split('|');
        let table = fields.next()?;
        let mut flag = || fields.next().map(|field| field == "t");
        Some(Self {
            table: (!table.is_empty()).then(|| table.to_owned()),
            loaded: flag()?,
            in_recovery: flag()?,
            read_only: flag()?,
        })
    }

    pub(super) fn refuse_read_only(&self) -> Result<()> {
        if self.in_recovery {
            let what = "the server is a standby";
            return Err(TpccError::ReadOnly { what }.into());
        }
        if self.read_only {
            let what = "transactions there are read-only (default_transaction_read_only)";
            return Err(TpccError::ReadOnly { what }.into());
        }
        Ok(())
    }

    pub(super) fn refuse_not_loaded(&self) -> Result<()> {
        match self.loaded {
            true => Ok(()),
            false => Err(TpccError::NotLoaded.into()),
        }
    }
}

/// Warehouses of a loaded database.
pub(super) fn count_warehouses(tools: &Tools, conninfo: &str) -> Result<u32> {
    let answer = tools.psql(
        conninfo,
        "counting warehouses",
        "SELECT count(*) FROM tpcc.warehouse;",
    )?;
    answer.trim().parse().map_err(|_| {
        TpccError::Answer {
            program: "psql",
            answer: answer.trim().to_owned(),
        }
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_indexed_once_and_warehouse_last() {
        let mut tables: Vec<_> = index_tasks()
            .into_iter()
            .map(|task| task.what.replace("indexing ", ""))
            .collect();
        tables.push("warehouse".to_owned());
        tables.sort();
        let mut expected = TABLES.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(tables, expected);
    }

    #[test]
    fn each_warehouse_has_three_tasks() {
        let tasks = fill_tasks(4);
        assert_eq!(tasks.len(), 2 + 3 * 4);
        for table in TABLES {
            let word = format!("INSERT INTO tpcc.{table}\n");
            assert!(tasks.iter().any(|task| task.sql.contains(&word)), "{table}");
        }
    }

    #[test]
    fn probes_are_parsed_and_judged() {
        let empty = Probe::parse("|f|f|f\n").unwrap();
        assert!(empty.refuse_read_only().is_ok() && empty.refuse_not_loaded().is_err());
        let standby = Probe::parse("stock|t|t|t\n").unwrap();
        assert!(standby.refuse_read_only().is_err() && standby.refuse_not_loaded().is_ok());
        assert!(Probe::parse("|f|f|t").unwrap().refuse_read_only().is_err());
        assert_eq!(Probe::parse(""), None);
        assert_eq!(Probe::parse("x|t"), None);
    }
}
