//! Commands that change the source's schema: what the source says of one, and what the target is to do.
//! No I/O.
//!
//! Event triggers on the source write each command into the stream as a logical message with [`PREFIX`]:
//! 64 digits that only they can make, since they know the replica's key, and then JSON. Anybody may write
//! messages, so one is believed only if its digits are right (the writer asks the target, which has the key)
//! and if it is in the transaction that it names.
//!
//! A message has the text of the client's whole query, which may have several statements, or that of the
//! function or DO block in which the command ran. [`text_of`] says which statement it was, or why that
//! cannot be told.

use std::collections::BTreeMap;

use lockstep_wire::Lsn;
use serde::Deserialize;

use crate::names::TableName;
use crate::sql_text::{Statement, statements};

/// The prefix of the messages.
pub const PREFIX: &[u8] = b"lockstep.ddl";

/// Digits before the JSON.
const DIGITS: usize = 64;

/// What PostgreSQL says of a statement that a function runs begins with this.
const IN_FUNCTION: &str = "SQL statement \"";

/// What follows the text of such a statement: its end, and the function around it.
const FRAMES: [&str; 3] = ["\"\nPL/pgSQL ", "\"\nSQL ", "\"\nextension "];

/// Most of a command's text that is shown.
const MOST_SHOWN: usize = 200;

/// A command as the source has written it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Captured {
    /// The publication of the replica that the message is for.
    pub replica: String,
    /// The transaction.
    pub xid: u64,
    /// The tag, such as `CREATE TABLE`.
    pub tag: String,
    /// The query that the client has sent.
    pub query: String,
    /// The functions in which the command ran, the innermost first; None if the client has sent it itself.
    pub context: Option<String>,
    /// Commands of this tag before it in the same query.
    #[serde(default)]
    pub before: usize,
    /// Who ran it, with which settings.
    pub role: Option<String>,
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Logged tables that it has made or altered.
    #[serde(default)]
    pub tables: Vec<Touched>,
    /// What makes the table of CREATE TABLE AS without its rows, which follow.
    pub create: Option<String>,
    /// Why the source could not say more.
    pub failed: Option<String>,
}

impl Captured {
    /// Whether a backslash in a plain string is only a backslash.
    pub fn plain_strings(&self) -> bool {
        let plain = self.settings.get("standard_conforming_strings");
        plain.is_none_or(|value| value != "off")
    }
}

/// A table that a command has made or altered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Touched {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    /// The publication has got it with this command.
    #[serde(default)]
    pub joins: bool,
    /// Whether the table had rows before that, which are not in the stream.
    #[serde(default)]
    pub rows: bool,
    /// All of its rows come behind the command: they have values that only the source knows.
    #[serde(default)]
    pub anew: bool,
    /// The replica identity that the source's event trigger has given it: FULL or DEFAULT.
    pub identity: Option<String>,
    /// What rows from before have in columns that were added without rewriting the table.
    #[serde(default)]
    pub missing: BTreeMap<String, String>,
    /// The bound of the partition that it is or has got, as constants.
    pub bound: Option<String>,
}

impl Touched {
    pub fn table(&self) -> TableName {
        TableName {
            schema: self.schema.clone(),
            table: self.name.clone(),
        }
    }
}

/// A command at its place in the stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// Where the message ends.
    pub lsn: Lsn,
    /// What proves that an event trigger wrote the message, and all that it proves.
    pub digits: String,
    pub proven: String,
    pub captured: Captured,
    pub todo: Todo,
}

/// What the target does with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Todo {
    /// Runs this statement.
    Run(String),
    /// Nothing: the replica stops before the command's transaction, for this reason.
    Stop(String),
}

/// Reads a message. None if it is for another replica, or nothing that an event trigger of ours writes.
pub fn command(content: &[u8], replica: &str, xid: u32, lsn: Lsn) -> Option<Command> {
    let content = std::str::from_utf8(content).ok()?;
    let (digits, proven) = content.split_at_checked(DIGITS)?;
    if proven.contains('\0') || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let captured: Captured = match serde_json::from_str(proven) {
        Ok(captured) => captured,
        // The writer finds out whether it is one of ours.
        Err(error) => {
            let words =
                format!("what the source's event trigger says of it cannot be read: {error}");
            return Some(Command {
                lsn,
                digits: digits.to_owned(),
                proven: proven.to_owned(),
                captured: Captured::default(),
                todo: Todo::Stop(words),
            });
        }
    };
    // A transaction's number has 32 bits in the stream.
    let is_here = captured.xid & u64::from(u32::MAX) == u64::from(xid);
    if captured.replica != replica || !is_here {
        return None;
    }
    Some(Command {
        lsn,
        digits: digits.to_owned(),
        proven: proven.to_owned(),
        todo: todo(&captured),
        captured,
    })
}

fn todo(captured: &Captured) -> Todo {
    if let Some(words) = &captured.failed {
        return Todo::Stop(format!(
            "the source's event trigger could not say what it does: {words}"
        ));
    }
    if let Some(table) = captured
        .tables
        .iter()
        .find(|table| table.joins && table.rows)
    {
        return Todo::Stop(format!(
            "table {} is replicated from here on and has rows from before, which are not in the stream",
            table.table()
        ));
    }
    if let Some(create) = &captured.create {
        return Todo::Run(create.clone());
    }
    match text_of(captured) {
        Ok(text) => Todo::Run(bounded(text, captured)),
        Err(words) => Todo::Stop(words),
    }
}

/// The text with the bound that the partition has on the source, which may have been computed at that moment.
/// Settings say how a backslash is read, so such a bound stays as it was written.
fn bounded(text: String, captured: &Captured) -> String {
    let mut bounds = captured.tables.iter().filter_map(|it| it.bound.as_ref());
    let (Some(bound), None) = (bounds.next(), bounds.next()) else {
        return text;
    };
    let found = statements(&text, captured.plain_strings()).unwrap_or_default();
    match found.as_slice() {
        [one] if !bound.contains('\\') => one.with_bound(bound),
        _ => text.clone(),
    }
}

/// The text of the command alone, or why it is not known.
pub fn text_of(captured: &Captured) -> Result<String, String> {
    let plain = captured.plain_strings();
    let Some(context) = &captured.context else {
        let all = statements(&captured.query, plain);
        let all = all.ok_or("the text of its query cannot be read")?;
        return match all.as_slice() {
            [one] => alone(one, &captured.tag),
            all => one_of(all, captured),
        };
    };
    let Some(inner) = context.strip_prefix(IN_FUNCTION) else {
        let around = context.lines().next().unwrap_or_default();
        return Err(format!(
            "it ran in a function that does not tell its text ({around}); functions and DO blocks in \
             PL/pgSQL do"
        ));
    };
    let ends = FRAMES.iter().flat_map(|frame| inner.match_indices(frame));
    let mut ends: Vec<_> = ends.map(|(at, _)| at).collect();
    ends.sort_unstable();
    ends.extend(inner.strip_suffix('"').map(str::len));
    let texts = ends.into_iter().filter_map(|end| inner.get(..end));
    let found = texts.filter_map(|text| statements(text, plain)).next();
    let all = found.ok_or("the text of the function's statement cannot be read")?;
    let mut tagged = all.iter().filter(|one| one.has_tag(&captured.tag));
    match (all.as_slice(), tagged.next(), tagged.next()) {
        ([one], ..) | (_, Some(one), None) => alone(one, &captured.tag),
        _ => Err("a function has sent several statements at once, and which of them it was cannot be told"
            .to_owned()),
    }
}

/// The statement among several that the client has sent at once.
fn one_of(all: &[Statement<'_>], captured: &Captured) -> Result<String, String> {
    let mut tagged = all.iter().filter(|one| one.has_tag(&captured.tag));
    let number = tagged.clone().count();
    let rolls_back = || {
        let first = all.iter().filter_map(|one| one.tokens.first());
        first
            .into_iter()
            .any(|token| token.is("rollback") || token.is("abort"))
    };
    // What is rolled back takes back what has counted its commands.
    if number > 1 && rolls_back() {
        return Err(format!(
            "the client has sent {number} commands {} and a ROLLBACK at once, and which of them it was cannot be \
             told",
            captured.tag
        ));
    }
    let found = tagged.nth(captured.before);
    let found = found.ok_or_else(|| {
        format!(
            "its text cannot be told from the {} statements of its query",
            all.len()
        )
    })?;
    alone(found, &captured.tag)
}

/// The statement as it can run within a transaction.
fn alone(statement: &Statement<'_>, tag: &str) -> Result<String, String> {
    let is_drop = statement
        .tokens
        .first()
        .is_some_and(|token| token.is("drop"));
    match tag {
        "CREATE INDEX" | "ALTER TABLE" => Ok(statement.without("concurrently")),
        // Temporary objects that a command drops with others are not here.
        tag if tag.starts_with("DROP ") && is_drop && tag != "DROP OWNED" => {
            Ok(statement.if_exists())
        }
        tag if tag.starts_with("DROP ") && !is_drop => Err(format!(
            "a command {tag} ran within another one, which does not tell its text ({})",
            shown(statement.text)
        )),
        _ => Ok(statement.text.to_owned()),
    }
}

/// The beginning of a command, for people.
pub fn shown(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let words = words.join(" ");
    match words.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{} ...", words.get(..end).unwrap_or_default()),
        None => words,
    }
}

impl Command {
    /// Beginning and position of a command, as an error has them.
    pub fn named(&self) -> (String, Lsn) {
        (self.shown(), self.lsn)
    }

    /// The command for people.
    pub fn shown(&self) -> String {
        shown(match &self.todo {
            Todo::Run(text) => text,
            Todo::Stop(_) => &self.captured.query,
        })
    }
}

/// Functions whose values say when or where they are called: they give the target other values.
const OF_THE_MOMENT: [&str; 14] = [
    "now",
    "transaction_timestamp",
    "statement_timestamp",
    "pg_current_xact_id",
    "txid_current",
    "pg_current_xact_id_if_assigned",
    "txid_current_if_assigned",
    "pg_current_snapshot",
    "txid_current_snapshot",
    "inet_client_addr",
    "inet_server_addr",
    "pg_backend_pid",
    "version",
    "pg_postmaster_start_time",
];

/// Likewise, without parentheses.
const MOMENTS: [&str; 6] = [
    "current_timestamp",
    "current_date",
    "current_time",
    "localtime",
    "localtimestamp",
    "session_user",
];

/// Words of literals that are a moment.
const LITERAL_MOMENTS: [&str; 4] = ["now", "today", "tomorrow", "yesterday"];

/// Words of expressions, of subcommands that may follow them, and of types that are written and read alike
/// at any time.
const HARMLESS: [&str; 58] = [
    "drop",
    "alter",
    "column",
    "set",
    "data",
    "type",
    "using",
    "cast",
    "as",
    "and",
    "or",
    "not",
    "is",
    "null",
    "case",
    "when",
    "then",
    "else",
    "end",
    "true",
    "false",
    "distinct",
    "from",
    "in",
    "between",
    "like",
    "coalesce",
    "nullif",
    "greatest",
    "least",
    "smallint",
    "int",
    "integer",
    "bigint",
    "int2",
    "int4",
    "int8",
    "numeric",
    "decimal",
    "real",
    "double",
    "precision",
    "float4",
    "float8",
    "text",
    "varchar",
    "boolean",
    "bool",
    "uuid",
    "json",
    "jsonb",
    "bytea",
    "character",
    "varying",
    "char",
    "bpchar",
    "float",
    "dec",
];

/// What ALTER TABLE ... USING computes with: a word that gives the target other values, or names of
/// functions and of all else, of which the target knows what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Using {
    Moment(String),
    Names {
        functions: Vec<String>,
        others: Vec<String>,
    },
}

/// Looks at the expressions of `ALTER TABLE ... ALTER COLUMN ... TYPE ... USING`.
pub fn using(text: &str, plain_strings: bool) -> Using {
    let all = statements(text, plain_strings).unwrap_or_default();
    let tokens = all
        .first()
        .map(|one| one.tokens.as_slice())
        .unwrap_or_default();
    let is_type = tokens.first().is_some_and(|token| token.is("alter"))
        && tokens.get(1).is_some_and(|token| token.is("table"));
    // Constraints have EXCLUDE USING and USING INDEX.
    let is_using = |place: usize| {
        let is = |place: usize, word| tokens.get(place).is_some_and(|token| token.is(word));
        is(place, "using") && !is(place + 1, "index") && !(place > 0 && is(place - 1, "exclude"))
    };
    let first = (0..tokens.len()).find(|place| is_type && is_using(*place));
    let rest = first.and_then(|first| tokens.get(first..));
    let mut using = rest.unwrap_or_default().iter().peekable();
    let (mut functions, mut others) = (Vec::new(), Vec::new());
    let mut is_qualified = false;
    while let Some(token) = using.next() {
        let is_called = using.peek().is_some_and(|next| next.text == "(");
        let is_quoted = token.text.starts_with('"');
        let name = match is_quoted {
            true => token.text.trim_matches('"').replace("\"\"", "\""),
            false => token.text.to_lowercase(),
        };
        let literal = name.trim_matches(|c: char| !c.is_alphanumeric());
        let is_moment = match token.text.contains('\'') || token.text.starts_with('$') {
            true => LITERAL_MOMENTS.iter().any(|word| literal.contains(word)),
            false => {
                MOMENTS.iter().any(|word| token.is(word))
                    || (is_called && OF_THE_MOMENT.contains(&name.as_str()))
            }
        };
        if is_moment {
            return Using::Moment(name);
        }
        let is_name = is_quoted || name.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let is_harmless = !is_quoted && !is_qualified && HARMLESS.contains(&name.as_str());
        is_qualified = token.text == ".";
        if !is_name || token.text.contains('\'') || is_harmless {
            continue;
        }
        match is_called {
            true => functions.push(name),
            false => others.push(name),
        }
    }
    Using::Names { functions, others }
}

/// A column that a command has given a table of the target, which has rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewColumn {
    pub name: String,
    /// Whether values are computed from the row.
    pub is_generated: bool,
    /// Whether the default is another for each row, or at each time.
    pub is_volatile: bool,
    /// Whether the default is the same at all times and with all settings, or there is none.
    pub is_constant: bool,
    /// What rows from before have; None if each row has been given a value, or none has one.
    pub missing: Option<String>,
}

/// What is to be done with a new column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fill<'a> {
    Nothing,
    /// Rows from before have this value on the source, and another here.
    Set(&'a str),
    /// Rows from before have values on the source that are not known here.
    Unknown,
}

/// Compares a new column with the source's.
pub fn fill<'a>(column: &NewColumn, source: &'a Touched) -> Fill<'a> {
    match (source.missing.get(&column.name), &column.missing) {
        _ if column.is_generated => Fill::Nothing,
        _ if column.is_volatile => Fill::Unknown,
        (Some(there), Some(here)) if there != here => Fill::Set(there),
        (Some(there), None) => Fill::Set(there),
        // The source has rewritten the table, so each of its rows has been given a value.
        (None, _) if !column.is_constant => Fill::Unknown,
        _ => Fill::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(tag: &str, query: &str, context: Option<&str>, before: usize) -> Captured {
        Captured {
            replica: "r".to_owned(),
            xid: 7,
            tag: tag.to_owned(),
            query: query.to_owned(),
            context: context.map(str::to_owned),
            before,
            role: Some("x".to_owned()),
            settings: BTreeMap::new(),
            tables: Vec::new(),
            create: None,
            failed: None,
        }
    }

    fn text(
        tag: &str,
        query: &str,
        context: Option<&str>,
        before: usize,
    ) -> Result<String, String> {
        text_of(&captured(tag, query, context, before))
    }

    #[test]
    fn the_text_is_that_of_the_statement_alone() {
        let several = "CREATE TABLE a (x int); INSERT INTO a VALUES (1); CREATE TABLE b AS SELECT 1; \
                       CREATE TABLE c (y text DEFAULT ';'); DROP TABLE a";
        let of = |tag, before| text(tag, several, None, before);
        assert_eq!(of("CREATE TABLE", 0).unwrap(), "CREATE TABLE a (x int)");
        assert_eq!(
            of("CREATE TABLE", 1).unwrap(),
            "CREATE TABLE c (y text DEFAULT ';')"
        );
        assert_eq!(of("DROP TABLE", 0).unwrap(), "DROP TABLE IF EXISTS a");
        assert!(
            of("CREATE TABLE", 2)
                .unwrap_err()
                .contains("cannot be told")
        );
        assert!(of("CREATE VIEW", 0).is_err());
        // What drops something within another command is not that command.
        let within = text("DROP FUNCTION", "CREATE EXTENSION cube", None, 0).unwrap_err();
        assert!(within.contains("within another one"), "{within}");
        // One statement is what it is, whatever the lexer makes of it.
        assert_eq!(
            text("ALTER X", "alter something;", None, 0).unwrap(),
            "alter something"
        );
    }

    #[test]
    fn what_runs_in_a_function_has_its_own_text() {
        let of = |tag, context| text(tag, "SELECT f()", Some(context), 0);
        let inner = "SQL statement \"COMMENT ON TABLE t IS '\"\nPL/pgSQL function f() line 1'\"\n\
                     PL/pgSQL function f() line 3 at SQL statement";
        assert_eq!(
            of("COMMENT", inner).unwrap(),
            "COMMENT ON TABLE t IS '\"\nPL/pgSQL function f() line 1'"
        );
        let several = "SQL statement \"CREATE TABLE a (); DROP TABLE b\"\nPL/pgSQL function f() line 3 at EXECUTE";
        assert_eq!(of("CREATE TABLE", several).unwrap(), "CREATE TABLE a ()");
        let twice =
            "SQL statement \"DROP TABLE a; DROP TABLE b\"\nPL/pgSQL function f() line 3 at EXECUTE";
        assert!(
            of("DROP TABLE", twice)
                .unwrap_err()
                .contains("several statements")
        );
        let unknown = of("CREATE TABLE", "SQL function \"f\" statement 1").unwrap_err();
        assert!(unknown.contains("SQL function \"f\""), "{unknown}");
    }

    #[test]
    fn transactions_within_a_query_may_hide_which_command_it_was() {
        let query = "BEGIN; CREATE TABLE a (); ROLLBACK; CREATE TABLE b ()";
        let refused = text("CREATE TABLE", query, None, 0).unwrap_err();
        assert!(refused.contains("2 commands CREATE TABLE"), "{refused}");
        let one = "BEGIN; CREATE TABLE a (); SAVEPOINT s; CREATE TABLE b (); COMMIT";
        assert_eq!(
            text("CREATE TABLE", one, None, 1).unwrap(),
            "CREATE TABLE b ()"
        );
    }

    #[test]
    fn what_waits_for_others_runs_in_a_transaction_instead() {
        let text = |tag, query| text(tag, query, None, 0).unwrap();
        assert_eq!(
            text("CREATE INDEX", "CREATE INDEX CONCURRENTLY i ON t (a)"),
            "CREATE INDEX  i ON t (a)"
        );
        assert_eq!(
            text("DROP INDEX", "DROP INDEX CONCURRENTLY i"),
            "DROP INDEX IF EXISTS  i"
        );
        let refresh = "REFRESH MATERIALIZED VIEW CONCURRENTLY m";
        assert_eq!(text("REFRESH MATERIALIZED VIEW", refresh), refresh);
    }

    #[test]
    fn what_a_drop_does_not_find_is_gone() {
        for (tag, query, expected) in [
            (
                "DROP TABLE",
                "DROP TABLE IF EXISTS a",
                "DROP TABLE IF EXISTS a",
            ),
            (
                "DROP TABLE",
                "drop table a, \"if\" cascade",
                "drop table IF EXISTS a, \"if\" cascade",
            ),
            (
                "DROP MATERIALIZED VIEW",
                "DROP MATERIALIZED VIEW m",
                "DROP MATERIALIZED VIEW IF EXISTS m",
            ),
            (
                "DROP TEXT SEARCH CONFIGURATION",
                "DROP TEXT SEARCH CONFIGURATION c",
                "DROP TEXT SEARCH CONFIGURATION IF EXISTS c",
            ),
            (
                "DROP LANGUAGE",
                "DROP PROCEDURAL LANGUAGE l",
                "DROP PROCEDURAL LANGUAGE IF EXISTS l",
            ),
            (
                "DROP CAST",
                "DROP CAST (a AS b)",
                "DROP CAST IF EXISTS (a AS b)",
            ),
            ("DROP OWNED", "DROP OWNED BY r", "DROP OWNED BY r"),
        ] {
            assert_eq!(text(tag, query, None, 0).unwrap(), expected);
        }
    }

    fn message(json: &serde_json::Value) -> Vec<u8> {
        format!("{}{json}", "0".repeat(DIGITS)).into_bytes()
    }

    #[test]
    fn a_message_counts_for_its_replica_and_transaction() {
        let json = serde_json::json!({"replica": "r", "xid": (1_u64 << 32) + 7, "tag": "DROP TABLE",
            "query": "DROP TABLE t", "context": null, "role": "x"});
        let read = |replica, xid| command(&message(&json), replica, xid, Lsn::from(1));
        let found = read("r", 7).unwrap();
        assert_eq!(found.todo, Todo::Run("DROP TABLE IF EXISTS t".to_owned()));
        assert!(found.proven.starts_with('{') && found.digits.len() == DIGITS);
        assert_eq!(read("other", 7), None);
        assert_eq!(read("r", 8), None, "somebody has written it again");
        assert_eq!(command(b"{}", "r", 7, Lsn::from(1)), None);
        let odd =
            serde_json::json!({"replica": "r", "xid": 7, "tag": "x", "query": "x", "before": "0"});
        let odd = command(&message(&odd), "r", 7, Lsn::from(1)).unwrap();
        assert!(matches!(odd.todo, Todo::Stop(words) if words.contains("cannot be read")));
    }

    #[test]
    fn what_would_lose_rows_or_is_not_known_stops() {
        let mut one = captured("ALTER TABLE", "ALTER TABLE t SET LOGGED", None, 0);
        let touched = |rows| Touched {
            oid: 1,
            schema: "s".to_owned(),
            name: "t".to_owned(),
            joins: true,
            rows,
            anew: false,
            identity: None,
            missing: BTreeMap::new(),
            bound: None,
        };
        one.tables = vec![touched(false)];
        assert!(matches!(todo(&one), Todo::Run(_)));
        one.tables = vec![touched(true)];
        assert!(matches!(todo(&one), Todo::Stop(words) if words.contains("rows from before")));
        one.tables = Vec::new();
        one.query = "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (f('x'))".to_owned();
        let mut part = touched(false);
        for (bound, expected) in [
            ("FOR VALUES IN (7)", "IN (7)"),
            ("FOR VALUES IN ('\\')", "IN (f('x'))"),
        ] {
            part.bound = Some(bound.to_owned());
            one.tables = vec![part.clone()];
            let text = format!("CREATE TABLE p1 PARTITION OF p FOR VALUES {expected}");
            assert_eq!(todo(&one), Todo::Run(text));
        }
        one.failed = Some("no memory".to_owned());
        assert!(matches!(todo(&one), Todo::Stop(words) if words.contains("no memory")));
    }

    #[test]
    fn expressions_of_a_new_type_may_be_another_value_on_the_target() {
        let of = |text: &str| {
            using(
                &format!("ALTER TABLE now ALTER a TYPE int USING {text}"),
                true,
            )
        };
        let names = |functions: &[&str], others: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            Using::Names {
                functions: owned(functions),
                others: owned(others),
            }
        };
        let moment = |name: &str| Using::Moment(name.to_owned());
        assert_eq!(of("a::int"), names(&[], &["a"]));
        assert_eq!(
            of("f(a) + \"G h\" (b), ALTER b TYPE numeric(5, 2)"),
            names(&["f", "G h"], &["a", "b", "b"])
        );
        assert_eq!(
            of("a::jsonb, ALTER b TYPE bytea USING b::character varying::bytea"),
            names(&[], &["a", "b", "b"])
        );
        assert_eq!(of("s.int(a)"), names(&["int"], &["s", "a"]));
        assert_eq!(of("a::timestamptz"), names(&[], &["a", "timestamptz"]));
        assert_eq!(of("extract(epoch FROM now())"), moment("now"));
        assert_eq!(of("a + CURRENT_DATE"), moment("current_date"));
        assert_eq!(of("f(' Today ')"), moment("' today '"));
        for other in [
            "ADD b int DEFAULT f()",
            "ADD CONSTRAINT i UNIQUE USING INDEX i",
            "ADD UNIQUE (a) USING INDEX TABLESPACE s",
            "ADD EXCLUDE USING gist (f(a) WITH &&)",
        ] {
            let of = using(&format!("ALTER TABLE t {other}"), true);
            assert_eq!(of, names(&[], &[]), "{other}");
        }
        let both = "ALTER TABLE t ADD UNIQUE USING INDEX i, ALTER a TYPE int USING f(a)";
        assert_eq!(using(both, true), names(&["f"], &["a"]));
    }

    #[test]
    fn rows_from_before_get_what_they_have_on_the_source() {
        let source = Touched {
            missing: BTreeMap::from([("a".to_owned(), "1".to_owned())]),
            oid: 1,
            schema: "s".to_owned(),
            name: "t".to_owned(),
            joins: false,
            rows: false,
            anew: false,
            identity: None,
            bound: None,
        };
        let column = |name: &str, missing: Option<&str>| NewColumn {
            name: name.to_owned(),
            is_generated: false,
            is_volatile: false,
            is_constant: true,
            missing: missing.map(str::to_owned),
        };
        assert_eq!(fill(&column("a", Some("1")), &source), Fill::Nothing);
        assert_eq!(fill(&column("a", Some("2")), &source), Fill::Set("1"));
        assert_eq!(fill(&column("b", None), &source), Fill::Nothing);
        let volatile = NewColumn {
            is_volatile: true,
            ..column("b", None)
        };
        assert_eq!(fill(&volatile, &source), Fill::Unknown);
        let moment = |name| NewColumn {
            is_constant: false,
            ..column(name, Some("2"))
        };
        assert_eq!(fill(&moment("a"), &source), Fill::Set("1"));
        assert_eq!(fill(&moment("b"), &source), Fill::Unknown, "rewritten");
        let generated = NewColumn {
            is_generated: true,
            ..volatile
        };
        assert_eq!(fill(&generated, &source), Fill::Nothing);
    }
}
