//! The extended protocol of console sessions: statements that are prepared, described, bound and
//! executed. No I/O: what a message leads to is a [`Step`].
//!
//! The console's statements have no parameters. There are no transactions, so portals live until
//! Sync. After an error all up to the next Sync is thrown away, by whoever reads the messages.

use std::collections::{BTreeMap, VecDeque};

use lockstep_wire::backend::{Backend, Column, Report};
use lockstep_wire::frame;

use super::binary::in_binary;
use super::fields::Fields;
use super::frames::split;
use super::rights::ConsoleService;

/// Most statements, and most portals, of a session.
const MOST: usize = 100;

/// What a message leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send these messages.
    Say(Vec<u8>),
    /// Run this query, and give what is answered to [`Extended::ran`].
    Run(String),
    /// Send this error; nothing more counts up to the next Sync.
    Fail(Box<Report>),
}

/// Statements and portals of a session, by their names.
#[derive(Debug, Default)]
pub(super) struct Extended {
    statements: BTreeMap<Vec<u8>, Statement>,
    portals: BTreeMap<Vec<u8>, Portal>,
    /// The portal whose query runs, and the most rows that are wanted of it.
    running: Option<(Vec<u8>, usize)>,
}

#[derive(Debug, Clone)]
struct Statement {
    text: String,
    columns: Vec<Column<'static>>,
}

#[derive(Debug)]
struct Portal {
    statement: Statement,
    /// Whether each column is wanted in binary.
    binary: Vec<bool>,
    /// What is left of the answer; None before it is executed.
    left: Option<VecDeque<Vec<u8>>>,
}

impl From<Report> for Step {
    fn from(report: Report) -> Self {
        Self::Fail(Box::new(report))
    }
}

impl Extended {
    /// What a Parse, Bind, Describe, Execute, Close or Flush leads to.
    pub fn hear(&mut self, console: &impl ConsoleService, message: &[u8]) -> Step {
        let (tag, body) = split(message);
        let mut fields = Fields(body);
        let step = match tag {
            b'P' => self.parse(console, &mut fields),
            b'B' => self.bind(&mut fields),
            b'D' => self.describe(&mut fields),
            b'E' => self.execute(&mut fields),
            b'C' => self.close(&mut fields),
            _ => Some(Step::Say(Vec::new())),
        };
        step.unwrap_or_else(|| Report::error("08P01", "invalid message format").into())
    }

    /// A Sync: nothing of a portal is left.
    pub fn sync(&mut self) {
        self.portals.clear();
    }

    fn parse(&mut self, console: &impl ConsoleService, fields: &mut Fields<'_>) -> Option<Step> {
        let name = fields.c_bytes()?;
        let text = fields.c_bytes()?;
        let Ok(text) = std::str::from_utf8(text) else {
            return Some(Report::error("22021", "the query is no UTF-8").into());
        };
        if !name.is_empty() && self.statements.contains_key(name) {
            let what = format!("prepared statement \"{}\" already exists", shown(name));
            return Some(Report::error("42P05", what).into());
        }
        if self.statements.len() >= MOST && !self.statements.contains_key(name) {
            let what = format!("the session has more than {MOST} prepared statements");
            return Some(Report::error("54000", what).into());
        }
        let columns = match console.columns(text) {
            Ok(columns) => columns,
            Err(report) => return Some(report.into()),
        };
        let text = text.to_owned();
        self.statements
            .insert(name.to_vec(), Statement { text, columns });
        Some(Step::Say(message(b'1', &[])))
    }

    fn bind(&mut self, fields: &mut Fields<'_>) -> Option<Step> {
        let (portal, name) = (fields.c_bytes()?, fields.c_bytes()?);
        let formats = fields.number()?;
        fields.take(2 * usize::from(formats))?;
        let parameters = fields.number()?;
        let Some(statement) = self.statements.get(name).cloned() else {
            return Some(no_statement(name).into());
        };
        if parameters > 0 {
            let what = format!(
                "bind message supplies {parameters} parameters, but prepared statement \"{}\" \
                 requires 0",
                shown(name)
            );
            return Some(Report::error("08P01", what).into());
        }
        let mut wanted = Vec::new();
        for _ in 0..fields.number()? {
            wanted.push(fields.number()? == 1);
        }
        let columns = statement.columns.len();
        let binary = match wanted.as_slice() {
            [] => vec![false; columns],
            [all] => vec![*all; columns],
            each if each.len() == columns => wanted,
            each => {
                let what = format!(
                    "bind message has {} result formats but query has {columns} columns",
                    each.len()
                );
                return Some(Report::error("08P01", what).into());
            }
        };
        if !portal.is_empty() && self.portals.contains_key(portal) {
            let what = format!("cursor \"{}\" already exists", shown(portal));
            return Some(Report::error("42P03", what).into());
        }
        if self.portals.len() >= MOST && !self.portals.contains_key(portal) {
            let what = format!("the session has more than {MOST} portals");
            return Some(Report::error("54000", what).into());
        }
        let bound = Portal {
            statement,
            binary,
            left: None,
        };
        self.portals.insert(portal.to_vec(), bound);
        Some(Step::Say(message(b'2', &[])))
    }

    fn describe(&self, fields: &mut Fields<'_>) -> Option<Step> {
        let (kind, name) = (fields.take(1)?, fields.c_bytes()?);
        let mut out = Vec::new();
        let (columns, binary) = match kind {
            b"S" => {
                let Some(statement) = self.statements.get(name) else {
                    return Some(no_statement(name).into());
                };
                // No parameters.
                out.extend(message(b't', &[0; 2]));
                (&statement.columns, None)
            }
            b"P" => {
                let Some(portal) = self.portals.get(name) else {
                    return Some(no_portal(name).into());
                };
                (&portal.statement.columns, Some(&portal.binary))
            }
            _ => return None,
        };
        match columns.is_empty() {
            true => out.extend(message(b'n', &[])),
            false => {
                let at = out.len();
                Backend::RowDescription(columns.clone()).encode(&mut out);
                set_formats(out.get_mut(at..).unwrap_or_default(), columns, binary);
            }
        }
        Some(Step::Say(out))
    }

    fn execute(&mut self, fields: &mut Fields<'_>) -> Option<Step> {
        let (name, most) = (fields.c_bytes()?, fields.take(4)?);
        let most = i32::from_be_bytes(most.try_into().ok()?);
        let most = match usize::try_from(most) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(most) => most,
        };
        let Some(portal) = self.portals.get_mut(name) else {
            return Some(no_portal(name).into());
        };
        Some(match &mut portal.left {
            None => {
                self.running = Some((name.to_vec(), most));
                Step::Run(portal.statement.text.clone())
            }
            Some(left) => Step::Say(some_of(left, most)),
        })
    }

    /// What the query that runs was answered; true comes with an error.
    pub fn ran(&mut self, answer: &[u8]) -> (Vec<u8>, bool) {
        let Some((name, most)) = self.running.take() else {
            return (Vec::new(), false);
        };
        let Some(portal) = self.portals.get_mut(&name) else {
            return (Vec::new(), false);
        };
        let (mut now, mut left, mut failed) = (Vec::new(), VecDeque::new(), false);
        let mut rest = answer;
        while let Ok(Some((found, length))) = frame::first(rest, rest.len()) {
            let whole = rest.get(..length).unwrap_or_default();
            rest = rest.get(length..).unwrap_or_default();
            match found.tag {
                // Describe has said it.
                b'T' => {}
                b'D' => left.push_back(in_binary(whole, &portal.statement.columns, &portal.binary)),
                b'N' => now.extend_from_slice(whole),
                tag => {
                    failed |= tag == b'E';
                    left.push_back(whole.to_vec());
                }
            }
        }
        now.extend(some_of(&mut left, most));
        portal.left = Some(left);
        (now, failed)
    }

    fn close(&mut self, fields: &mut Fields<'_>) -> Option<Step> {
        let (kind, name) = (fields.take(1)?, fields.c_bytes()?);
        match kind {
            b"S" => drop(self.statements.remove(name)),
            b"P" => drop(self.portals.remove(name)),
            _ => return None,
        }
        Some(Step::Say(message(b'3', &[])))
    }
}

/// The next rows of an answer, at most `most`, and its end if that is all.
fn some_of(left: &mut VecDeque<Vec<u8>>, most: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rows = 0;
    while let Some(next) = left.pop_front() {
        if next.first() == Some(&b'D') {
            if rows == most {
                left.push_front(next);
                out.extend(message(b's', &[]));
                return out;
            }
            rows += 1;
        }
        out.extend(next);
    }
    if out.is_empty() {
        // All of it was sent before.
        Backend::CommandComplete("SELECT 0").encode(&mut out);
    }
    out
}

/// Sets the formats in a RowDescription, which come last of each column's fields.
fn set_formats(described: &mut [u8], columns: &[Column<'_>], binary: Option<&Vec<bool>>) {
    // Tag, length and number of columns; of each a name with its end, and 18 bytes.
    let mut at = frame::HEADER + 2;
    for (column, binary) in columns.iter().zip(binary.into_iter().flatten()) {
        at += column.name.len() + 1 + 18;
        if let (true, Some(format)) = (*binary, described.get_mut(at - 1)) {
            *format = 1;
        }
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, tag, |out| out.extend_from_slice(body));
    out
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(63).collect()
}

fn no_statement(name: &[u8]) -> Report {
    let what = match name {
        b"" => "unnamed prepared statement does not exist".to_owned(),
        name => format!("prepared statement \"{}\" does not exist", shown(name)),
    };
    Report::error("26000", what)
}

fn no_portal(name: &[u8]) -> Report {
    Report::error(
        "34000",
        format!("portal \"{}\" does not exist", shown(name)),
    )
}
