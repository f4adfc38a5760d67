//! What follows the rows and the sequences: materialized views, statistics.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, Conninfo, field};

use crate::copy::workers::target_session;
use crate::error::{ReplicaError, Result};
use crate::lifecycle::made::{is_of_the_object, lacks_a_name, said};
use crate::names::TableName;
use crate::state::{ANALYZE, Unmade, VIEW};

/// SQLSTATE of a materialized view that reads another one that is not filled yet.
const NOT_FILLED: &str = "55000";

const VIEWS: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' AND c.relispopulated
ORDER BY c.oid";

const MISSING_VIEWS: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' AND NOT c.relispopulated";

/// Largest first, so that no session is left with one at the end.
const ANALYZED: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%'
    AND n.nspname NOT IN ('information_schema', 'lockstep')
ORDER BY c.relpages DESC";

fn names(connection: &mut Connection, sql: &str) -> Result<Vec<TableName>, ClientError> {
    let rows = connection.query(sql)?;
    rows.iter()
        .map(|row| {
            Ok(TableName {
                schema: field(row, 0)?,
                table: field(row, 1)?,
            })
        })
        .collect()
}

/// Event triggers of the source that fire for sessions like ours, and how each is enabled there.
const ALWAYS: &str = "SELECT evtname, CASE evtenabled WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END \
                      FROM pg_event_trigger WHERE evtenabled IN ('A', 'R') ORDER BY 1";

/// The event triggers in `$1` that the target has.
const THERE: &str = "SELECT evtname FROM pg_event_trigger \
                     WHERE evtname IN (SELECT json_array_elements_text($1::json))";

/// Drops the target's event triggers that the source has. None fires for its own end, and some would for that
/// of other objects.
pub fn drop_event_triggers(source: &mut Connection, target: &mut Connection) -> Result<()> {
    let named = |rows: Vec<Vec<Option<String>>>| -> Result<Vec<String>, ClientError> {
        rows.iter().map(|row| field(row, 0)).collect()
    };
    let theirs = source.query("SELECT evtname FROM pg_event_trigger");
    let theirs = theirs.and_then(named).map_err(ReplicaError::Source)?;
    let mut drop = || -> Result<(), ClientError> {
        let there = target.query_with(THERE, &[&serde_json::json!(theirs).to_string()])?;
        for name in named(there)? {
            let name = identifier("event trigger", &name)?;
            target.execute(&format!("DROP EVENT TRIGGER {name}"))?;
        }
        Ok(())
    };
    drop().map_err(ReplicaError::Target)
}

/// From this version on `event_triggers` keeps them silent.
const SETS_EVENT_TRIGGERS: u32 = 170_000;

/// Calls `work` on a target whose event triggers stay silent meanwhile, whatever they are enabled for. They
/// are enabled afterwards as they are on the source, so that a call after a crash enables them, too.
pub fn without_event_triggers<T>(
    source: &mut Connection,
    target: &mut Connection,
    work: impl FnOnce(&mut Connection, &mut Connection) -> Result<T>,
) -> Result<T> {
    let always = match target.server_version() < SETS_EVENT_TRIGGERS {
        true => source.query(ALWAYS).map_err(ReplicaError::Source)?,
        false => Vec::new(),
    };
    let mut commands = Vec::new();
    let mut read = || -> Result<(), ClientError> {
        let mut enabled = Vec::new();
        for row in &always {
            enabled.push((field::<String>(row, 0)?, field::<String>(row, 1)?));
        }
        let names: Vec<_> = enabled.iter().map(|(name, _)| name).collect();
        for row in target.query_with(THERE, &[&serde_json::json!(names).to_string()])? {
            let name: String = field(&row, 0)?;
            let how = enabled.iter().find(|(one, _)| *one == name);
            let name = identifier("event trigger", &name)?;
            let to = |how: &str| format!("ALTER EVENT TRIGGER {name} {how}");
            let how = how.map_or_else(String::new, |(_, how)| format!("ENABLE {how}"));
            commands.push((to("DISABLE"), to(&how)));
        }
        Ok(())
    };
    if !always.is_empty() {
        read().map_err(ReplicaError::Target)?;
    }
    let all = |target: &mut Connection, which: fn(&(String, String)) -> &String| {
        let mut commands = commands.iter().map(which);
        let run = commands.try_for_each(|command| target.execute(command));
        run.map_err(ReplicaError::Target)
    };
    all(target, |(disable, _)| disable)?;
    let done = work(source, target);
    all(target, |(_, enable)| enable).and(done)
}

/// The search path of those who connect to the source and set none.
const SEARCH_PATH: &str = "SELECT reset_val FROM pg_settings WHERE name = 'search_path'";

/// From this version on REFRESH finds no names by the session's search path.
const REFRESH_WITHOUT_PATH: u32 = 170_000;

/// Fills the materialized views that are filled on the source. One that reads another is tried
/// again after that one. Returns those that cannot be filled.
pub fn views(source: &mut Connection, target: &mut Connection) -> Result<Vec<Unmade>> {
    let filled = names(source, VIEWS).map_err(ReplicaError::Source)?;
    let path = source.query_one(SEARCH_PATH).and_then(|row| field(&row, 0));
    let path: String = path.map_err(ReplicaError::Source)?;
    let missing = names(target, MISSING_VIEWS).map_err(ReplicaError::Target)?;
    let mut unmade = Vec::new();
    let mut left: Vec<_> = filled
        .into_iter()
        .filter(|name| missing.contains(name))
        .collect();
    while !left.is_empty() {
        let before = left.len();
        let mut again = Vec::new();
        for view in left {
            match target.execute(&format!("REFRESH MATERIALIZED VIEW {}", view.sql())) {
                Ok(()) => {}
                Err(error) if error.refusal().is_some_and(|it| it.sqlstate == NOT_FILLED) => {
                    again.push((view, error));
                }
                Err(error) if is_of_the_object(&error) => {
                    unmade.push(unfilled(&view, &error, &path, target.server_version()));
                }
                Err(error) => return Err(ReplicaError::Target(error)),
            }
        }
        if again.len() == before {
            let refused = again.drain(..);
            unmade.extend(refused.map(|(view, error)| unfilled(&view, &error, &path, 0)));
        }
        left = again.into_iter().map(|(view, _)| view).collect();
    }
    Ok(unmade)
}

fn unfilled(view: &TableName, error: &ClientError, path: &str, version: u32) -> Unmade {
    let mut unmade = Unmade {
        kind: VIEW.to_owned(),
        schema: view.schema.clone(),
        object: view.table.clone(),
        command: format!("REFRESH MATERIALIZED VIEW {};", view.sql()),
        error: said(error),
    };
    if lacks_a_name(error) && version >= REFRESH_WITHOUT_PATH {
        unmade.error.push_str(
            "; from PostgreSQL 17 on REFRESH finds no names by search_path: qualify them in the view and its \
             functions",
        );
    } else if lacks_a_name(error) {
        unmade.command = format!("SET search_path = {path}; {}", unmade.command);
    }
    unmade
}

/// Gathers statistics of all tables, with so many sessions. Returns those of which there are none.
pub fn analyze(target: &Conninfo, jobs: usize) -> Result<Vec<Unmade>> {
    let mut first = target_session(target)?;
    let tables = names(&mut first, ANALYZED).map_err(ReplicaError::Target)?;
    let tables = Mutex::new(VecDeque::from(tables));
    let work = |mut session: Connection| -> Result<Vec<Unmade>> {
        let mut unmade = Vec::new();
        loop {
            let next = {
                let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
                tables.pop_front()
            };
            let Some(table) = next else {
                return Ok(unmade);
            };
            let command = format!("ANALYZE {}", table.sql());
            match session.execute(&command) {
                Ok(()) => {}
                Err(error) if is_of_the_object(&error) => unmade.push(Unmade {
                    kind: ANALYZE.to_owned(),
                    schema: table.schema,
                    object: table.table,
                    command: format!("{command};"),
                    error: said(&error),
                }),
                Err(error) => return Err(ReplicaError::Target(error)),
            }
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..jobs)
            .map(|_| scope.spawn(|| work(target_session(target)?)))
            .collect();
        let mut result = work(first);
        for other in others {
            // A worker that panicked has printed why; its tables are left without statistics.
            let done = other.join().unwrap_or_else(|_| {
                Err(ReplicaError::State(
                    "a thread that analyzed tables has ended".to_owned(),
                ))
            });
            result = match (result, done) {
                (Ok(mut unmade), Ok(more)) => {
                    unmade.extend(more);
                    Ok(unmade)
                }
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    })
}
