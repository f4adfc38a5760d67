//! What pg_restore could not make is tried again here, where the target's error can be read. It is listed
//! then, and the copy goes on without it.

use std::path::Path;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};

use super::LONG;
use crate::error::{ReplicaError, Result};
use crate::schema::entries::Entry;
use crate::schema::{Programs, RESTORE};
use crate::state::Unmade;
use lockstep_apply::sessions::{self, SILENT};

/// SQLSTATE of rows that refer to none.
const ORPHANS: &str = "23503";

/// SQLSTATEs of a name that is not found: a function, a table, another object, a schema.
const NOT_FOUND: [&str; 4] = ["42883", "42P01", "42704", "3F000"];

/// SQLSTATEs of what is there already: a relation, another object, a primary key.
const IS_THERE: [&str; 3] = ["42P07", "42710", "42P16"];

/// Classes of errors that say nothing of the object: the server lacks memory or disk, ends, or cannot read
/// a file. The command can be repeated then.
const OF_THE_SERVER: [&str; 2] = ["53", "57"];
const IO_ERROR: &str = "58030";

/// An object could not be made, and another call would meet the same error.
pub(super) fn is_of_the_object(error: &ClientError) -> bool {
    let of_the_server = |sqlstate: &str| {
        sqlstate == IO_ERROR || OF_THE_SERVER.iter().any(|it| sqlstate.starts_with(it))
    };
    (error.refusal()).is_some_and(|refusal| !of_the_server(&refusal.sqlstate))
}

/// What the target said, with the functions in which it failed.
pub(super) fn said(error: &ClientError) -> String {
    let detail = error.refusal().and_then(|refusal| refusal.detail.as_ref());
    match detail {
        Some(detail) => format!("{} ({})", error.words(), detail.trim_end_matches('.')),
        None => error.words(),
    }
}

/// A name was not found, perhaps only for want of a search path.
pub(super) fn lacks_a_name(error: &ClientError) -> bool {
    has_code(error, &NOT_FOUND)
}

fn has_code(error: &ClientError, codes: &[&str]) -> bool {
    let refusal = error.refusal();
    refusal.is_some_and(|refusal| codes.contains(&refusal.sqlstate.as_str()))
}

/// Makes all entries of the section after the data that the target does not have. Returns those that it
/// refuses.
pub(super) fn make(
    target: &Conninfo,
    programs: &Programs,
    file: &Path,
    tablespaces: bool,
) -> Result<Vec<Unmade>> {
    // As pg_restore's sessions: another call ends this one if our process was killed.
    let session = sessions::open(target, Purpose::Sql, RESTORE).and_then(|mut session| {
        session.set_patience(LONG);
        session.execute(SILENT)?;
        Ok(session)
    });
    let mut session = session.map_err(ReplicaError::Target)?;
    let mut unmade: Vec<Unmade> = Vec::new();
    for number in programs.entries(file)? {
        let Some(entry) = programs.entry(file, number, tablespaces)? else {
            continue;
        };
        match session.execute(&entry.script) {
            Ok(()) => {}
            Err(error) if has_code(&error, &IS_THERE) => {}
            Err(error) if is_of_the_object(&error) => {
                match unmade.iter_mut().rev().find(|one| has_comment(one, &entry)) {
                    Some(one) => one.command = format!("{}\n{}", one.command, entry.command),
                    None => unmade.push(refused(&mut session, entry, &error)?),
                }
            }
            Err(error) => return Err(ReplicaError::Target(error)),
        }
    }
    Ok(unmade)
}

/// The entry is the comment of an object that was refused: its name ends with that of the object.
fn has_comment(unmade: &Unmade, entry: &Entry) -> bool {
    let own = unmade.object.as_str();
    let named = [own.to_owned(), format!("\"{}\"", own.replace('"', "\"\""))];
    entry.kind == "COMMENT"
        && entry.schema == unmade.schema
        && named
            .iter()
            .any(|name| entry.tag.ends_with(&format!(" {name}")))
}

/// A foreign key with rows that refer to none is made so that it holds for later rows.
fn refused(session: &mut Connection, entry: Entry, error: &ClientError) -> Result<Unmade> {
    let mut unmade = Unmade {
        error: said(error),
        kind: entry.kind,
        schema: entry.schema,
        object: entry.tag,
        command: entry.command,
    };
    if lacks_a_name(error) {
        unmade.error.push_str(
            "; if it is there, a function finds it only by search_path, which is empty here and while \
             changes are applied: give the function one on both sides (ALTER FUNCTION ... SET search_path \
             = ...)",
        );
    }
    let is_orphaned = error.refusal().is_some_and(|it| it.sqlstate == ORPHANS);
    if let (true, Some(command)) = (is_orphaned, unmade.command.strip_suffix(';')) {
        match session.execute(&format!("{command} NOT VALID")) {
            Ok(()) => {}
            Err(error) if is_of_the_object(&error) => return Ok(unmade),
            Err(error) => return Err(ReplicaError::Target(error)),
        }
        if let Some(command) = validation(session, &unmade).map_err(ReplicaError::Target)? {
            unmade.command = command;
            unmade.error.push_str(
                "; it is NOT VALID for now: correct these rows on the source, then validate it on the \
                 target",
            );
        }
    }
    Ok(unmade)
}

/// The command that validates a foreign key.
fn validation(session: &mut Connection, unmade: &Unmade) -> Result<Option<String>, ClientError> {
    let sql = "SELECT format('ALTER TABLE %I.%I VALIDATE CONSTRAINT %I;', n.nspname, c.relname, k.conname) \
               FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid \
                   JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = $1 AND c.relname || ' ' || k.conname = $2 AND NOT k.convalidated";
    let rows = session.query_with(sql, &[&unmade.schema, &unmade.object])?;
    rows.first().map(|row| field(row, 0)).transpose()
}
