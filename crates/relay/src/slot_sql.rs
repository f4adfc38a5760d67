//! What a client's SQL asks of replication slots, and the SQL that the primary gets instead.
//!
//! The primary has none of the relay's slots, so `pg_replication_slots` there does not list
//! them, and its functions do not find them or make another slot of the same name. This module
//! reads a statement's words, without I/O:
//!
//! | the statement | what the primary gets |
//! |---|---|
//! | names no view and no function of slots | the statement |
//! | reads `pg_replication_slots` | the statement with a CTE of that name, which has the relay's slots too |
//! | is one call of `pg_drop_replication_slot` or `pg_replication_slot_advance` for a slot of the relay | the function's answer as a constant, after the relay has done it |
//! | names a slot of the relay and any other function of slots | nothing: the relay refuses it |
//! | calls a function of slots with parameters | the statement, if no parameter is the name of a slot of the relay |
//!
//! A CTE hides a view of the same name, wherever in the statement that is named, in any version
//! and with any columns. So nothing of a statement but its first word has to be understood.

#[cfg(test)]
mod tests;

use lockstep_wire::Lsn;
use lockstep_wire::backend::Report;
use lockstep_wire::command::{MOST_NAME, cut_name};
use serde_json::json;

use crate::token::{Spanned, Token, tokens};

/// The view, and the name of the CTE that hides it.
const VIEW: &str = "pg_replication_slots";
const CATALOG: &str = "pg_catalog";

/// Parts of a name of which each view or function of slots has one, in lower case.
const PARTS: [&[u8]; 2] = [b"replication_slot", b"logical_slot"];

/// The functions that do something to a slot or with it.
const FUNCTIONS: [&str; 10] = [
    DROP,
    ADVANCE,
    "pg_create_logical_replication_slot",
    "pg_create_physical_replication_slot",
    "pg_copy_logical_replication_slot",
    "pg_copy_physical_replication_slot",
    "pg_logical_slot_get_changes",
    "pg_logical_slot_peek_changes",
    "pg_logical_slot_get_binary_changes",
    "pg_logical_slot_peek_binary_changes",
];
const DROP: &str = "pg_drop_replication_slot";
const ADVANCE: &str = "pg_replication_slot_advance";

/// A slot of the relay, as a server lists its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub database: String,
    pub database_oid: Option<u32>,
    pub active_pid: Option<u32>,
    pub confirmed: Lsn,
    /// The relay's spool cannot give the slot what it needs next.
    pub lost: bool,
}

/// What the relay does for a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Drop { slot: String },
    Advance { slot: String, to: Lsn },
}

/// What becomes of a statement.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The primary executes it.
    Pass,
    /// The primary executes this text instead.
    Instead(String),
    /// The primary executes it, unless a parameter names a slot of the relay. The function that it
    /// calls.
    Calls(&'static str),
    /// The relay does this, then the primary executes the text.
    Act(Act, String),
    Refuse(Box<Report>),
}

/// Whether a message may name a view or function of slots; if not, nothing else has to be done.
pub fn mentions(message: &[u8]) -> bool {
    PARTS.iter().any(|part| {
        message
            .windows(part.len())
            .any(|window| window.eq_ignore_ascii_case(part))
    })
}

/// What becomes of a query, which may have several statements.
pub fn verdict(query: &str, slots: &[Listed]) -> Verdict {
    if !mentions(query.as_bytes()) {
        return Verdict::Pass;
    }
    // What cannot be read the primary refuses.
    let Ok(tokens) = tokens(query) else {
        return Verdict::Pass;
    };
    let Some(function) = function(&tokens) else {
        return match listing(query, &tokens, slots) {
            Some(instead) => Verdict::Instead(instead),
            None => Verdict::Pass,
        };
    };
    // The view is the primary's where a function is called: what is done to its rows is done there.
    let Some(slot) = slots.iter().find(|slot| names(&tokens, &slot.name)) else {
        return Verdict::Calls(function);
    };
    match single_call(query, &tokens, &slot.name) {
        Some((act, instead)) => Verdict::Act(act, instead),
        None => Verdict::Refuse(Box::new(refusal(function, &slot.name))),
    }
}

/// Why the relay does not let a statement call this function for one of its slots.
pub fn refusal(function: &str, slot: &str) -> Report {
    if function.contains("create") {
        return exists(slot);
    }
    let message = format!("the relay keeps replication slot \"{slot}\" and cannot execute this");
    let hint = match function {
        DROP => format!("The relay executes SELECT {DROP}('{slot}') as a statement of its own."),
        ADVANCE => format!(
            "The relay executes SELECT {ADVANCE}('{slot}', 'LSN') as a statement of its own."
        ),
        _ => format!(
            "Changes are read with START_REPLICATION; {function} needs a slot of the primary."
        ),
    };
    Report::error("0A000", message).hint(hint)
}

/// Why a slot cannot be made that the relay has.
pub fn exists(slot: &str) -> Report {
    let message = format!("replication slot \"{slot}\" already exists");
    Report::error("42710", message).hint(
        "The relay keeps this slot. pg_replication_slots lists it in sessions through the relay, \
         and SHOW SLOTS in the relay's database lockstep does.",
    )
}

/// The first function of slots that is called, or named in the text of a block.
fn function(tokens: &[Spanned]) -> Option<&'static str> {
    tokens.iter().find_map(|(token, _)| match token {
        Token::Word(word) | Token::Quoted(word) => {
            FUNCTIONS.into_iter().find(|function| function == word)
        }
        Token::Text(text) => {
            let text = text.to_ascii_lowercase();
            FUNCTIONS
                .into_iter()
                .find(|function| text.contains(function))
        }
        _ => None,
    })
}

/// Whether a value that a function or a comparison takes as a name is this slot's: the server cuts it.
pub fn is_name_of(value: &[u8], slot: &str) -> bool {
    value.get(..MOST_NAME).unwrap_or(value) == slot.as_bytes()
}

/// Whether a text is this name, or has it in single quotes.
fn names(tokens: &[Spanned], slot: &str) -> bool {
    let end = if slot.len() == MOST_NAME { "" } else { "'" };
    tokens.iter().any(|(token, _)| match token {
        Token::Text(text) => cut_name(text) == slot || text.contains(&format!("'{slot}{end}")),
        _ => false,
    })
}

fn is_word(token: Option<&Spanned>, wanted: &str) -> bool {
    matches!(token, Some((Token::Word(word) | Token::Quoted(word), _)) if word == wanted)
}

fn is_symbol(token: Option<&Spanned>, wanted: char) -> bool {
    matches!(token, Some((Token::Symbol(symbol), _)) if *symbol == wanted)
}

/// The query, its statements reading the relay's slots too; None if none of them reads the view.
fn listing(query: &str, tokens: &[Spanned], slots: &[Listed]) -> Option<String> {
    let mut out = String::new();
    let mut done = 0;
    let cte = cte(slots);
    for statement in tokens.split(|(token, _)| *token == Token::Symbol(';')) {
        let Some(at) = insertion(statement) else {
            continue;
        };
        let (position, begins) = at;
        out.push_str(query.get(done..position)?);
        match begins {
            true => out.push_str(&format!("WITH {cte} ")),
            false => out.push_str(&format!(" {cte}, ")),
        }
        done = position;
        // The view by its full name would not be the CTE.
        for full in statement.windows(3) {
            let [(_, schema), (_, _), (_, view)] = full else {
                continue;
            };
            if is_word(full.first(), CATALOG)
                && is_symbol(full.get(1), '.')
                && is_word(full.last(), VIEW)
            {
                out.push_str(query.get(done..schema.start)?);
                done = view.start;
            }
        }
    }
    if done == 0 && out.is_empty() {
        return None;
    }
    out.push_str(query.get(done..)?);
    Some(out)
}

/// Where the CTE goes in a statement that reads the view, and whether it needs a WITH.
fn insertion(statement: &[Spanned]) -> Option<(usize, bool)> {
    let named: Vec<usize> = (0..statement.len())
        .filter(|at| is_word(statement.get(*at), VIEW))
        .collect();
    // Of another schema, or a CTE of the client's own.
    let is_view = |at: &usize| {
        let full = at
            .checked_sub(2)
            .is_none_or(|schema| is_word(statement.get(schema), CATALOG));
        let dot = at.checked_sub(1).and_then(|dot| statement.get(dot));
        full || !is_symbol(dot, '.')
    };
    let own =
        |at: &usize| is_word(statement.get(at + 1), "as") && is_symbol(statement.get(at + 2), '(');
    if named.is_empty() || !named.iter().all(is_view) || named.iter().any(own) {
        return None;
    }
    let (first, span) = statement.first()?;
    match first {
        Token::Word(word) if word == "with" => {
            let last = match is_word(statement.get(1), "recursive") {
                true => statement.get(1),
                false => statement.first(),
            };
            last.map(|(_, span)| (span.end, false))
        }
        Token::Word(word) if ["select", "table", "values"].contains(&word.as_str()) => {
            Some((span.start, true))
        }
        Token::Symbol('(') => Some((span.start, true)),
        _ => None,
    }
}

/// The view with the relay's slots. A slot of the primary with the name of one of them is
/// hidden: nobody can reach it through the relay.
fn cte(slots: &[Listed]) -> String {
    let names: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
    let rows: Vec<_> = slots.iter().map(row).collect();
    let (names, rows) = (json!(names).to_string(), json!(rows).to_string());
    format!(
        "{VIEW} AS (SELECT p.* FROM {CATALOG}.{VIEW} AS p \
         WHERE NOT {CATALOG}.jsonb_exists({}, p.slot_name::{CATALOG}.text) \
         UNION ALL SELECT r.* FROM {CATALOG}.jsonb_populate_recordset(NULL::{CATALOG}.{VIEW}, {}) AS r)",
        jsonb(&names),
        jsonb(&rows)
    )
}

/// A document in ASCII, so that the session's encoding does not matter.
fn jsonb(value: &str) -> String {
    let mut ascii = String::new();
    for character in value.chars() {
        match character.is_ascii() {
            true => ascii.push(character),
            false => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    ascii.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    format!("{}::{CATALOG}.jsonb", literal(&ascii))
}

/// A text as any setting of the session reads it.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!(" E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// A slot's row, by the columns' names: those that a version does not have are left out there.
fn row(slot: &Listed) -> serde_json::Value {
    json!({
        "slot_name": slot.name,
        "plugin": "pgoutput",
        "slot_type": "logical",
        "datoid": slot.database_oid,
        "database": slot.database,
        "temporary": false,
        "active": slot.active_pid.is_some(),
        "active_pid": slot.active_pid,
        // The relay sends whole transactions from here on, and needs nothing before.
        "restart_lsn": slot.confirmed.to_string(),
        "confirmed_flush_lsn": slot.confirmed.to_string(),
        "wal_status": if slot.lost { "lost" } else { "reserved" },
        "two_phase": false,
        "conflicting": false,
        "invalidation_reason": slot.lost.then_some("wal_removed"),
        // A standby must not copy it: the primary has no such slot.
        "failover": false,
        "synced": false,
    })
}

/// A SELECT that calls [`DROP`] or [`ADVANCE`] once.
struct SingleCall<'t> {
    function: &'t str,
    arguments: Vec<&'t Token>,
    /// What is selected FROM the function; None if the call is what is selected.
    selected: Option<&'t [Spanned]>,
    /// What stands behind the call.
    after: &'t [Spanned],
}

impl<'t> SingleCall<'t> {
    fn read(tokens: &'t [Spanned]) -> Option<Self> {
        let tokens = match tokens.split_last() {
            Some(((Token::Symbol(';'), _), rest)) => rest,
            _ => tokens,
        };
        let [(Token::Word(select), _), rest @ ..] = tokens else {
            return None;
        };
        if select != "select" || rest.iter().any(|(token, _)| *token == Token::Symbol(';')) {
            return None;
        }
        let is_function = |(token, _): &Spanned| matches!(token, Token::Word(word) if [DROP, ADVANCE].contains(&word.as_str()));
        let (before, call) = rest.split_at_checked(rest.iter().position(is_function)?)?;
        let [
            (Token::Word(function), _),
            (Token::Symbol('('), _),
            inside @ ..,
        ] = call
        else {
            return None;
        };
        let before = match before {
            [front @ .., schema, dot]
                if is_word(Some(schema), CATALOG) && is_symbol(Some(dot), '.') =>
            {
                front
            }
            all => all,
        };
        let selected = match before {
            [] => None,
            [selected @ .., from] if is_word(Some(from), "from") && !selected.is_empty() => {
                Some(selected)
            }
            _ => return None,
        };
        let mut tokens = inside.iter();
        let end = tokens.position(|(token, _)| *token == Token::Symbol(')'))?;
        Some(Self {
            function,
            arguments: inside.get(..end)?.iter().map(|(token, _)| token).collect(),
            selected,
            after: inside.get(end + 1..)?,
        })
    }
}

/// What a statement does that is one call for this slot, and what it answers then.
///
/// The forms are those that clients send: `SELECT f(…)`, `SELECT … FROM f(…)`, and
/// `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '…'`.
fn single_call(query: &str, tokens: &[Spanned], slot: &str) -> Option<(Act, String)> {
    let call = SingleCall::read(tokens)?;
    let as_word = |token: &Token| match token {
        Token::Text(name) if cut_name(name) == slot => format!("{slot} "),
        token => word(token),
    };
    let shape: String = call.after.iter().map(|(token, _)| as_word(token)).collect();
    let owned = slot.to_owned();
    match (call.function, call.arguments.as_slice()) {
        (DROP, [Token::Text(name)]) if cut_name(name) == slot && shape.is_empty() => {}
        (DROP, [Token::Word(name)])
            if name == "slot_name"
                && call.selected.is_none()
                && shape == format!("from {VIEW} where slot_name = {slot} ") => {}
        (ADVANCE, [Token::Text(name), Token::Symbol(','), Token::Text(to)])
            if cut_name(name) == slot =>
        {
            let to: Lsn = to.parse().ok()?;
            let columns = match call.selected {
                Some(selected) => between(query, selected)?,
                None => "",
            };
            let instead = advanced(slot, to, columns, &shape)?;
            return Some((Act::Advance { slot: owned, to }, instead));
        }
        _ => return None,
    }
    let instead = format!("SELECT ''::{CATALOG}.void AS {DROP}");
    Some((Act::Drop { slot: owned }, instead))
}

/// What a statement answers that has advanced a slot.
fn advanced(slot: &str, to: Lsn, columns: &str, shape: &str) -> Option<String> {
    let (name, lsn) = (
        format!("{}::{CATALOG}.name", literal(slot)),
        format!("'{to}'::{CATALOG}.pg_lsn"),
    );
    match (columns, shape) {
        ("", "") => Some(format!("SELECT ROW({name}, {lsn}) AS {ADVANCE}")),
        (_, "") if !columns.is_empty() => Some(format!(
            "SELECT {columns} FROM (SELECT {name} AS slot_name, {lsn} AS end_lsn) AS {ADVANCE}"
        )),
        _ => None,
    }
}

/// A token with a blank behind it; a symbol, text or number as it is.
fn word(token: &Token) -> String {
    match token {
        Token::Word(text) | Token::Quoted(text) | Token::Text(text) | Token::Number(text) => {
            format!("{text} ")
        }
        Token::Symbol(symbol) => format!("{symbol} "),
    }
}

/// The query's text from the first of these tokens to the last.
fn between<'a>(query: &'a str, tokens: &[Spanned]) -> Option<&'a str> {
    let ((_, first), (_, last)) = tokens.first().zip(tokens.last())?;
    query.get(first.start..last.end)
}
