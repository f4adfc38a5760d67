//! Statements, and their form as input of psql.
//!
//! psql runs them because it connects the way users expect, switches databases and sends data
//! for COPY. After each statement it prints a mark with the outcome; rows go to /dev/null.

use std::fmt::Write;

use crate::random::Feature;

/// First word of the marks: the lines that report the outcome of a statement.
pub(crate) const MARK: &str = "@lockstep";

/// One step of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// One SQL statement, without its semicolon.
    Sql(String),
    /// COPY FROM STDIN and its data.
    Copy {
        /// The statement, without its semicolon.
        sql: String,
        /// Lines in COPY's text format, each with its newline.
        data: String,
    },
    /// Switches to this database.
    Connect(String),
    /// Switches back to the database that the session began in.
    Return,
    /// Skips the actions up to the next [`Action::EndIf`] if the last statement failed.
    IfSucceeded,
    /// Ends [`Action::IfSucceeded`].
    EndIf,
}

/// One action and the feature that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub feature: Feature,
    pub action: Action,
}

impl Statement {
    /// True if the server answers this action with success or an error.
    pub fn is_answered(&self) -> bool {
        matches!(self.action, Action::Sql(_) | Action::Copy { .. })
    }

    /// The statement without COPY data, for messages.
    pub fn text(&self) -> &str {
        match &self.action {
            Action::Sql(sql) | Action::Copy { sql, .. } => sql,
            Action::Connect(database) => database,
            Action::Return => "\\connect",
            Action::IfSucceeded => "\\if",
            Action::EndIf => "\\endif",
        }
    }
}

/// Settings of every session, sent again after each change of the database.
///
/// Timeouts are short, since sessions wait for each other's locks all the time.
fn settings(schema: &str) -> String {
    format!(
        "SET search_path = {schema};\nSET lock_timeout = '400ms';\n\
         SET statement_timeout = '60s';\nSET client_min_messages = error;\n\
         SET timezone = 'UTC';\nSET datestyle = 'ISO';\n"
    )
}

/// One session's statements as psql's input.
pub(crate) fn session(statements: &[Statement], schema: &str) -> String {
    let mut text = String::from("\\set home :DBNAME\n\\o /dev/null\n");
    text.push_str(&settings(schema));
    for (number, statement) in statements.iter().enumerate() {
        push_action(&mut text, &statement.action, schema);
        if statement.is_answered() {
            let _ = writeln!(text, "\\echo {MARK} {number} :SQLSTATE :LAST_ERROR_MESSAGE");
        }
    }
    text
}

fn push_action(text: &mut String, action: &Action, schema: &str) {
    match action {
        Action::Sql(sql) => {
            let _ = writeln!(text, "{sql};");
        }
        Action::Copy { sql, data } => {
            // If the server refuses the COPY, psql takes the data for the next statement's beginning.
            let _ = writeln!(text, "{sql};\n{data}\\.\n\\r");
        }
        Action::Connect(database) => {
            let _ = writeln!(text, "\\connect {database}");
            text.push_str(&settings(schema));
        }
        Action::Return => {
            text.push_str("\\connect :\"home\"\n");
            text.push_str(&settings(schema));
        }
        Action::IfSucceeded => text.push_str("\\if :ERROR\n\\else\n"),
        Action::EndIf => text.push_str("\\endif\n"),
    }
}

/// Parses a mark: the statement's number, its SQLSTATE, and the message of the session's last
/// error, which is this statement's message unless the state is success.
pub(crate) fn parse_mark(line: &str) -> Option<(usize, &str, &str)> {
    let mut words = line.strip_prefix(MARK)?.trim_start().splitn(3, ' ');
    let number = words.next()?.parse().ok()?;
    let state = words.next()?;
    Some((number, state, words.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back() {
        assert_eq!(parse_mark("@lockstep 3 00000 "), Some((3, "00000", "")));
        assert_eq!(
            parse_mark("@lockstep 12 42P01 relation \"t\" does not exist"),
            Some((12, "42P01", "relation \"t\" does not exist"))
        );
        for line in ["", "@lockstep", "@lockstep x 00000", "other 1 00000"] {
            assert_eq!(parse_mark(line), None, "{line}");
        }
    }

    #[test]
    fn a_failed_creation_skips_the_work_in_the_database() {
        let statement = |action| Statement {
            feature: Feature::DatabaseUse,
            action,
        };
        let text = session(
            &[
                statement(Action::Sql("CREATE DATABASE d".to_owned())),
                statement(Action::IfSucceeded),
                statement(Action::Connect("d".to_owned())),
                statement(Action::Sql("SELECT 1".to_owned())),
                statement(Action::Return),
                statement(Action::EndIf),
            ],
            "s",
        );
        let lines: Vec<_> = text.lines().collect();
        let at = |line: &str| lines.iter().position(|l| *l == line).unwrap();
        assert!(at("\\if :ERROR") < at("\\connect d"));
        assert!(at("\\connect d") < at("SELECT 1;"));
        assert!(at("SELECT 1;") < at("\\connect :\"home\""));
        assert!(at("\\connect :\"home\"") < at("\\endif"));
        assert_eq!(text.matches("SET lock_timeout").count(), 3);
        assert_eq!(text.matches(MARK).count(), 2);
    }
}
