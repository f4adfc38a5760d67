//! What can go wrong on a connection to a server, each as one line.

use std::fmt;

use crate::MOST_WORDS;

pub type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Everything that can go wrong with a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A conninfo that libpq does not understand; passwords are left out.
    #[error("the conninfo cannot be used: {0}")]
    Conninfo(String),
    /// No connection could be made; libpq's message, which names the address.
    #[error("{0}")]
    Connect(String),
    /// The server refused a command.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The server ended the connection, with this error.
    #[error("the connection to the primary is lost: {}", .0.message)]
    Ended(Box<Refusal>),
    /// The connection broke.
    #[error("the connection to the primary is lost: {0}")]
    Lost(String),
    /// The server did not answer in time. The connection is only usable again if the error
    /// is a [`ClientError::Refused`].
    #[error("the primary did not {what} within {seconds} s")]
    TimedOut {
        /// What the server was asked to do.
        what: String,
        seconds: u64,
    },
    /// An answer that the protocol does not allow here.
    #[error("the primary answered unexpectedly: {0}")]
    Protocol(String),
    /// A name or value that cannot be sent.
    #[error("{what} \"{name}\" cannot be used: {reason}")]
    Name {
        /// What the name names, e.g. `slot`.
        what: &'static str,
        /// The name, shortened.
        name: String,
        reason: &'static str,
    },
}

/// What the server was asked when it refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Query,
    /// `IDENTIFY_SYSTEM`.
    Identify,
    History,
    CreateSlot,
    CopySlot,
    AlterSlot,
    DropSlot,
    /// `START_REPLICATION`, before the first message.
    Start,
    /// A running stream.
    Stream,
    /// Statements with a COPY.
    Copy,
}

/// A command that the server refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub step: Step,
    /// The step in words, with names: `start streaming from slot "s"`.
    pub what: String,
    /// The error's code, five characters; empty if there is none.
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    /// Which functions and statements the server was in, innermost first, one a line.
    pub context: Option<String>,
    /// Schema and name of the table, if the error is of one.
    pub table: Option<(String, String)>,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the primary did not {}: {}", self.what, self.message)?;
        for more in [&self.detail, &self.hint].into_iter().flatten() {
            write!(f, " ({})", more.trim_end_matches('.'))?;
        }
        Ok(())
    }
}

/// SQLSTATEs that callers handle differently.
mod sqlstate {
    pub const UNDEFINED_OBJECT: &str = "42704";
    pub const UNDEFINED_FILE: &str = "58P01";
    pub const OBJECT_IN_USE: &str = "55006";
    /// Classes of errors after which a retry may succeed: connection exception, insufficient
    /// resources, operator intervention.
    pub const PASSING: [&str; 3] = ["08", "53", "57"];
}

/// The setting that lists the output plugins that a server accepts (from 15.20, 16.16, 17.11
/// and 18.6 on).
const PLUGIN_SETTING: &str = "output_plugin_libraries";

impl ClientError {
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }

    /// The refused command, if this error is a refusal.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The error that the server reported, also if the server ended the connection with it.
    pub fn report(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(report) | Self::Ended(report) => Some(report),
            _ => None,
        }
    }

    /// The error without the word primary, for servers that may be standbys.
    pub fn words(&self) -> String {
        match self {
            Self::Refused(refusal) => {
                let mut words = refusal.message.clone();
                if let Some(hint) = &refusal.hint {
                    words.push_str(&format!(" ({})", hint.trim_end_matches('.')));
                }
                if let Some(context) = &refusal.context {
                    words.push_str(&format!(" (in: {})", context.replace('\n', "; ")));
                }
                words
            }
            Self::Ended(report) => format!("the connection is lost: {}", report.message),
            Self::Lost(reason) => format!("the connection is lost: {reason}"),
            Self::TimedOut { seconds, .. } => format!("no answer within {seconds} s"),
            Self::Protocol(reason) => format!("it answered unexpectedly: {reason}"),
            other => other.to_string(),
        }
    }

    fn is_refusal(&self, sqlstate: &str, steps: &[Step]) -> bool {
        self.refusal()
            .is_some_and(|refusal| refusal.sqlstate == sqlstate && steps.contains(&refusal.step))
    }

    /// The slot does not exist.
    pub fn is_missing_slot(&self) -> bool {
        // While streaming, and in SQL, the same SQLSTATE is about publications.
        self.is_refusal(
            sqlstate::UNDEFINED_OBJECT,
            &[Step::Start, Step::DropSlot, Step::CopySlot],
        )
    }

    /// The plugin's library is not installed on the server.
    pub fn is_missing_library(&self) -> bool {
        self.is_refusal(
            sqlstate::UNDEFINED_FILE,
            &[Step::CreateSlot, Step::CopySlot, Step::Start],
        )
    }

    /// The server's setting `output_plugin_libraries` does not name the plugin's library.
    pub fn is_library_not_allowed(&self) -> bool {
        // The server translates its messages, but not the setting's name.
        self.refusal().is_some_and(|refusal| {
            [&refusal.detail, &refusal.hint]
                .into_iter()
                .flatten()
                .chain([&refusal.message])
                .any(|words| words.contains(PLUGIN_SETTING))
        })
    }

    /// Another session uses the slot.
    pub fn slot_in_use(&self) -> bool {
        self.is_refusal(
            sqlstate::OBJECT_IN_USE,
            &[Step::Start, Step::AlterSlot, Step::DropSlot, Step::CopySlot],
        )
    }

    /// A retry may succeed although no user has changed anything: the server cannot be reached,
    /// is busy or shuts down.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Ended(_) | Self::Lost(_) | Self::TimedOut { .. } => true,
            Self::Refused(refusal) => {
                self.slot_in_use()
                    || sqlstate::PASSING
                        .iter()
                        .any(|class| refusal.sqlstate.starts_with(class))
            }
            Self::Conninfo(_) | Self::Protocol(_) | Self::Name { .. } => false,
        }
    }
}

/// Joins the lines of `text` into one, of at most [`MOST_WORDS`] characters.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    match line.char_indices().nth(MOST_WORDS) {
        Some((end, _)) => {
            line.truncate(end);
            line.push_str(" ...");
            line
        }
        None => line,
    }
}

/// Most lines of an error's context that are kept: the innermost are the first.
const MOST_CONTEXT: usize = 4;

/// The first lines of an error's context, each as one line.
pub(crate) fn first_lines(context: &str) -> String {
    let lines = context.lines().take(MOST_CONTEXT).map(one_line);
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(step: Step, sqlstate: &str, detail: Option<&str>) -> ClientError {
        ClientError::refused(Refusal {
            step,
            what: "start streaming from slot \"s\"".to_owned(),
            sqlstate: sqlstate.to_owned(),
            message: "no".to_owned(),
            detail: detail.map(str::to_owned),
            table: None,
            hint: Some("Do it.".to_owned()),
            context: Some("PL/pgSQL function f() line 1 at RETURN\nSQL statement".to_owned()),
        })
    }

    #[test]
    fn refusals_are_told_apart() {
        type Is = fn(&ClientError) -> bool;
        let kinds: [(&str, Is); 4] = [
            ("missing slot", ClientError::is_missing_slot),
            ("missing library", ClientError::is_missing_library),
            ("not allowed", ClientError::is_library_not_allowed),
            ("in use", ClientError::slot_in_use),
        ];
        let setting = Some("The parameter \"output_plugin_libraries\" ...");
        for (step, sqlstate, detail, expected) in [
            (Step::Start, "42704", None, "missing slot"),
            (Step::DropSlot, "42704", None, "missing slot"),
            (Step::Stream, "42704", None, ""),
            (Step::Query, "42704", None, ""),
            (Step::Start, "58P01", None, "missing library"),
            (Step::Stream, "58P01", None, ""),
            (Step::CreateSlot, "42501", setting, "not allowed"),
            (Step::CreateSlot, "42501", None, ""),
            (Step::Start, "55006", None, "in use"),
            (Step::AlterSlot, "55006", None, "in use"),
            (Step::Query, "55006", None, ""),
        ] {
            let error = refused(step, sqlstate, detail);
            let found: Vec<_> = kinds
                .iter()
                .filter(|(_, is)| is(&error))
                .map(|(name, _)| *name)
                .collect();
            assert_eq!(found.join(", "), expected, "{step:?} {sqlstate}");
        }
    }

    #[test]
    fn what_may_pass_is_told_from_what_may_not() {
        for (error, passes) in [
            (ClientError::Lost(String::new()), true),
            (refused(Step::Stream, "57P01", None), true),
            (refused(Step::Start, "53300", None), true),
            (refused(Step::Start, "55006", None), true),
            (refused(Step::Start, "55000", None), false),
            (refused(Step::Start, "42704", None), false),
            (ClientError::Protocol(String::new()), false),
        ] {
            assert_eq!(error.may_pass(), passes, "{error:?}");
        }
    }

    #[test]
    fn a_refusal_is_one_line() {
        assert_eq!(
            refused(Step::Start, "58P01", Some("A detail.")).to_string(),
            "the primary did not start streaming from slot \"s\": no (A detail) (Do it)"
        );
    }

    #[test]
    fn words_name_the_functions_in_which_a_statement_failed() {
        assert_eq!(
            refused(Step::Query, "42883", None).words(),
            "no (Do it) (in: PL/pgSQL function f() line 1 at RETURN; SQL statement)"
        );
        assert_eq!(first_lines("a  b\nc\nd\ne\nf"), "a b\nc\nd\ne");
    }

    #[test]
    fn words_are_one_line_of_bounded_length() {
        assert_eq!(one_line(" a\n\tb  c\n"), "a b c");
        assert_eq!(
            one_line(&"é".repeat(10_000)).chars().count(),
            MOST_WORDS + 4
        );
    }
}
