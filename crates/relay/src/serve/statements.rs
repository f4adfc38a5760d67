//! Statements of a session that concern replication slots: what the primary gets of them, and
//! what is remembered of those that were prepared. No I/O; [`slot_sql`] reads the text.

use lockstep_wire::backend::Report;
use lockstep_wire::frame;

use super::fields::Fields;
use super::frames::split;
use crate::slot_sql::{self, Act, Listed, Verdict, is_name_of, refusal};

/// Most prepared statements of a session that are remembered. Others are refused.
const MOST: usize = 64;

/// What a prepared statement does with slots.
#[derive(Debug, Clone)]
enum Prepared {
    /// A statement that lists slots as they were when it was prepared; the client's message, to do
    /// that again.
    Lists(Vec<u8>),
    /// A statement that calls this function; the client's message, to look at it again.
    Calls(&'static str, Vec<u8>),
    /// A statement for which the relay does this each time, if the role is allowed to.
    Acts(Act, Result<(), Box<Report>>),
}

/// What becomes of a message of the client.
#[derive(Debug)]
pub(super) enum Heard {
    /// The primary gets this message.
    Instead(Vec<u8>),
    /// The session's role must be allowed to use slots. Then the act is done, and the primary gets
    /// the message; for a statement that is prepared, [`Statements::allow`] first, and no act.
    Needs(Option<Act>, Vec<u8>),
    /// The act is done, and the primary gets the message.
    Act(Act, Vec<u8>),
    /// The statement is prepared again with these messages, which end with a Sync, if the session
    /// is between two commands; then the primary gets the message.
    Again(Vec<u8>, Vec<u8>),
    Refuse(Box<Report>),
}

/// Prepared statements that concern slots, by their names.
#[derive(Debug, Default)]
pub(super) struct Statements(Vec<(Vec<u8>, Prepared)>);

impl Statements {
    /// Whether messages are wanted that do not name a view or function of slots.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What becomes of a whole message; None if it goes on as it is.
    pub fn hear(&mut self, message: &[u8], slots: &[Listed]) -> Option<Heard> {
        let (tag, body) = split(message);
        match tag {
            b'Q' => query(Fields(body).text()?, slots),
            b'P' => self.parse(body, message, slots),
            b'B' => self.bind(body, message, slots),
            b'C' => {
                if let Some((b'S', name)) = body.split_first() {
                    self.forget(name.strip_suffix(b"\0").unwrap_or(name));
                }
                None
            }
            _ => None,
        }
    }

    /// The statement that was prepared last may act, or may not.
    pub fn allow(&mut self, whether: Result<(), Box<Report>>) {
        if let Some((_, Prepared::Acts(_, allowed))) = self.0.last_mut() {
            *allowed = whether;
        }
    }

    fn forget(&mut self, name: &[u8]) {
        self.0.retain(|(known, _)| known != name);
    }

    fn parse(&mut self, body: &[u8], message: &[u8], slots: &[Listed]) -> Option<Heard> {
        let mut fields = Fields(body);
        let name = fields.c_bytes()?;
        let text = fields.text();
        self.forget(name);
        let text = text?;
        let (prepared, heard) = match slot_sql::verdict(text, slots) {
            Verdict::Pass => return None,
            Verdict::Refuse(report) => return Some(Heard::Refuse(report)),
            Verdict::Instead(instead) => {
                let instead = parse_message(name, &instead, fields.0);
                (
                    Prepared::Lists(message.to_vec()),
                    Some(Heard::Instead(instead)),
                )
            }
            Verdict::Calls(function) => (Prepared::Calls(function, message.to_vec()), None),
            Verdict::Act(act, instead) => {
                let instead = parse_message(name, &instead, fields.0);
                let prepared = Prepared::Acts(act, Err(Box::new(in_pipeline())));
                (prepared, Some(Heard::Needs(None, instead)))
            }
        };
        if self.0.len() >= MOST {
            let what = format!("more than {MOST} prepared statements name replication slots");
            return Some(Heard::Refuse(Box::new(Report::error("54000", what))));
        }
        self.0.push((name.to_vec(), prepared));
        heard
    }

    fn bind(&mut self, body: &[u8], message: &[u8], slots: &[Listed]) -> Option<Heard> {
        let mut fields = Fields(body);
        let _portal = fields.c_bytes()?;
        let name = fields.c_bytes()?;
        let (_, prepared) = self.0.iter().find(|(known, _)| known == name)?;
        match prepared {
            Prepared::Acts(act, Ok(())) => Some(Heard::Act(act.clone(), message.to_vec())),
            Prepared::Acts(_, Err(report)) => Some(Heard::Refuse(report.clone())),
            Prepared::Calls(function, original) => {
                // The relay may have taken over a slot since.
                let (_, text) = prepared_text(original)?;
                match slot_sql::verdict(text, slots) {
                    Verdict::Refuse(report) => return Some(Heard::Refuse(report)),
                    Verdict::Act(Act::Drop { slot } | Act::Advance { slot, .. }, _) => {
                        return Some(Heard::Refuse(Box::new(refusal(function, &slot))));
                    }
                    _ => {}
                }
                let formats = fields.number()?;
                fields.take(2 * usize::from(formats))?;
                for _ in 0..fields.number()? {
                    let Some(value) = fields.value()? else {
                        continue;
                    };
                    if let Some(slot) = slots.iter().find(|slot| is_name_of(value, &slot.name)) {
                        return Some(Heard::Refuse(Box::new(refusal(function, &slot.name))));
                    }
                }
                None
            }
            // It was prepared a moment ago.
            Prepared::Lists(_) if name.is_empty() => None,
            Prepared::Lists(original) => {
                let (types, text) = prepared_text(original)?;
                let now = match slot_sql::verdict(text, slots) {
                    Verdict::Instead(instead) => instead,
                    _ => text.to_owned(),
                };
                let mut again = Vec::new();
                frame::put(&mut again, b'C', |out| {
                    out.push(b'S');
                    out.extend_from_slice(name);
                    out.push(0);
                });
                again.extend(parse_message(name, &now, types));
                frame::put(&mut again, b'S', |_| {});
                Some(Heard::Again(again, message.to_vec()))
            }
        }
    }
}

/// What becomes of a simple query.
fn query(text: &str, slots: &[Listed]) -> Option<Heard> {
    let message = |text: &str| {
        let mut out = Vec::new();
        frame::put(&mut out, b'Q', |out| {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        });
        out
    };
    match slot_sql::verdict(text, slots) {
        // A simple query has no parameters.
        Verdict::Pass | Verdict::Calls(_) => None,
        Verdict::Instead(instead) => Some(Heard::Instead(message(&instead))),
        Verdict::Act(act, instead) => Some(Heard::Needs(Some(act), message(&instead))),
        Verdict::Refuse(report) => Some(Heard::Refuse(report)),
    }
}

/// Why the relay does not act where it cannot ask the primary about the session's role.
pub(super) fn in_pipeline() -> Report {
    let message =
        "the relay cannot drop or advance its replication slot in the middle of a pipeline";
    Report::error("0A000", message).hint("Send the statement once the one before it is answered.")
}

/// What follows the text of a Parse, and the text.
fn prepared_text(message: &[u8]) -> Option<(&[u8], &str)> {
    let (_, body) = split(message);
    let mut fields = Fields(body);
    let _name = fields.c_bytes()?;
    let text = fields.text()?;
    Some((fields.0, text))
}

/// A Parse; `types` is what follows the text.
fn parse_message(name: &[u8], text: &str, types: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, b'P', |out| {
        for text in [name, text.as_bytes()] {
            out.extend_from_slice(text);
            out.push(0);
        }
        out.extend_from_slice(types);
    });
    out
}

/// Something that the primary refuses in the place of this message, with an error that has `why`
/// in double quotes: everything behind it then is thrown away as behind any error.
pub(super) fn refused(message: &[u8], why: &str) -> Vec<u8> {
    let query = format!("SELECT \"{why}\"");
    let mut out = Vec::new();
    match message.first() {
        Some(b'B') => frame::put(&mut out, b'B', |out| {
            out.push(0);
            out.extend_from_slice(why.as_bytes());
            // No formats, no parameters, no formats of the result.
            out.extend([0; 7]);
        }),
        Some(b'P') => out = parse_message(b"", &query, &[0; 2]),
        _ => frame::put(&mut out, b'Q', |out| {
            out.extend_from_slice(query.as_bytes());
            out.push(0);
        }),
    }
    out
}
