//! What a query asks for: tokens to statements.

use lockstep_wire::backend::Report;
use lockstep_wire::command::cut_name;

use super::listing::STATISTICS_COLUMNS;
use super::rights::Need;
use crate::token::{self, Spanned, Token};

/// Longest query, in bytes.
pub const LONGEST_QUERY: usize = 64 * 1024;

/// Most statements in one query.
pub const MOST_STATEMENTS: usize = 100;

/// Most columns of one statement's answer.
pub const MOST_COLUMNS: usize = 100;

/// Longest piece of a query in an error, in characters.
const MOST_TEXT: usize = 60;

/// Functions of the console.
const STATISTICS: &str = "lockstep_stat_logical_wal_cache";
const RESET: &str = "lockstep_stat_reset_wal_cache";
const OLDEST: &str = "get_oldest_wal_cache_ptr";

/// What the advice is wherever a query is not understood.
pub(super) const HELP_HINT: &str = "SHOW HELP lists what this console runs.";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    /// Clients send it by themselves; it has no meaning here. Its command tag.
    Acknowledge(&'static str),
    /// Where a transaction begins or ends, elsewhere. Its command tag.
    Transaction(&'static str),
    /// `SELECT 1`: the number.
    Number(i32),
    /// `SELECT version()`
    SelectVersion,
    /// `SELECT … FROM lockstep_stat_logical_wal_cache()`
    Statistics(Statistics),
    /// `SELECT lockstep_stat_reset_wal_cache(…)`: one slot, or all.
    Reset(Option<String>),
    /// `SELECT get_oldest_wal_cache_ptr()`
    OldestPointer,
    /// `SHOW …`
    Show(Show),
    /// `DROP SLOT …`
    DropSlot(String),
    /// `TERMINATE …`: a session's number.
    Terminate(u64),
    /// `RELOAD`
    Reload,
}

/// What can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    Slots,
    Clients,
    Upstream,
    Spool,
    Config,
    Version,
    Help,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Statistics {
    /// Columns, by their place among all.
    pub columns: Vec<usize>,
    /// Only this slot.
    pub slot: Option<String>,
    /// Sorted by this column, and whether the greatest comes first.
    pub order: Option<(usize, bool)>,
}

impl Statement {
    /// What it is called when it is refused, and what it needs.
    pub fn need(&self) -> (Need, &'static str) {
        match self {
            Self::Acknowledge(_) | Self::Transaction(_) | Self::Number(_) | Self::SelectVersion => {
                (Need::Login, "this")
            }
            Self::Show(Show::Version | Show::Help) => (Need::Login, "SHOW"),
            Self::Show(_) => (Need::Read, "SHOW"),
            Self::Statistics(_) => (Need::Read, STATISTICS),
            Self::OldestPointer => (Need::Read, OLDEST),
            Self::Reset(_) => (Need::Change, RESET),
            Self::DropSlot(_) => (Need::Change, "DROP SLOT"),
            Self::Terminate(_) => (Need::Change, "TERMINATE"),
            Self::Reload => (Need::Change, "RELOAD"),
        }
    }
}

/// All statements of a query. Nothing of it may be run if any is wrong.
pub(super) fn parse(query: &str) -> Result<Vec<Statement>, Report> {
    if query.len() > LONGEST_QUERY {
        return Err(Report::error(
            "54000",
            format!("the query is longer than {LONGEST_QUERY} bytes"),
        ));
    }
    let tokens =
        token::tokens(query).map_err(|wrong| Report::error(wrong.sqlstate(), wrong.to_string()))?;
    let mut statements = Vec::new();
    for tokens in tokens.split(|(token, _)| *token == Token::Symbol(';')) {
        if tokens.is_empty() {
            continue;
        }
        if statements.len() == MOST_STATEMENTS {
            return Err(Report::error(
                "54000",
                format!("the query has more than {MOST_STATEMENTS} statements"),
            ));
        }
        statements.push(statement(query, tokens)?);
    }
    Ok(statements)
}

/// Why a statement is none of ours.
enum Wrong {
    /// The console has no such thing.
    Unknown,
    /// Something in it is wrong, and can be named.
    Because(Report),
}

fn statement(query: &str, tokens: &[Spanned]) -> Result<Statement, Report> {
    let mut reader = Reader { left: tokens };
    match reader.statement() {
        // Whatever a client says there.
        Ok(statement @ (Statement::Acknowledge(_) | Statement::Transaction(_))) => Ok(statement),
        Ok(statement) if reader.left.is_empty() => Ok(statement),
        Err(Wrong::Because(report)) => Err(report),
        Ok(_) | Err(Wrong::Unknown) => {
            let span = tokens
                .first()
                .zip(tokens.last())
                .map_or(0..0, |((_, first), (_, last))| first.start..last.end);
            let text = query.get(span).unwrap_or_default();
            Err(Report::error(
                "0A000",
                format!("this console does not run \"{}\"", shortened(text)),
            )
            .hint(HELP_HINT))
        }
    }
}

/// A statement in one line, its beginning only.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = line
        .chars()
        .filter(|c| !c.is_control())
        .take(MOST_TEXT)
        .collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    shown
}

/// What stands between SELECT and FROM.
enum Item {
    All,
    Column(String),
    Number(i32),
    Call(String, Vec<Argument>),
}

/// An argument of a function.
enum Argument {
    Text(String),
    Null,
}

struct Reader<'a> {
    left: &'a [Spanned],
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<&'a Token> {
        let ((token, _), rest) = self.left.split_first()?;
        self.left = rest;
        Some(token)
    }

    fn peek(&self) -> Option<&'a Token> {
        self.left.first().map(|(token, _)| token)
    }

    /// Takes the next token if it is this one.
    fn takes(&mut self, wanted: &Token) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    fn takes_symbol(&mut self, symbol: char) -> bool {
        self.takes(&Token::Symbol(symbol))
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, symbol: char) -> Result<(), Wrong> {
        match self.takes_symbol(symbol) {
            true => Ok(()),
            false => Err(Wrong::Unknown),
        }
    }

    fn name(&mut self) -> Result<String, Wrong> {
        match self.next() {
            Some(Token::Word(name) | Token::Quoted(name)) => Ok(name.clone()),
            _ => Err(Wrong::Unknown),
        }
    }

    fn statement(&mut self) -> Result<Statement, Wrong> {
        let Some(Token::Word(first)) = self.next() else {
            return Err(Wrong::Unknown);
        };
        let statement = match first.as_str() {
            "select" => return self.select(),
            "show" => Statement::Show(self.show()?),
            "drop" if self.takes_word("slot") => Statement::DropSlot(self.slot()?),
            "terminate" => Statement::Terminate(self.session()?),
            "reload" => Statement::Reload,
            "set" => self.set()?,
            "reset" => Statement::Acknowledge("RESET"),
            "discard" => Statement::Acknowledge("DISCARD ALL"),
            "begin" => Statement::Transaction("BEGIN"),
            "start" if self.takes_word("transaction") => {
                Statement::Transaction("START TRANSACTION")
            }
            "commit" | "end" => Statement::Transaction("COMMIT"),
            "rollback" | "abort" => Statement::Transaction("ROLLBACK"),
            _ => return Err(Wrong::Unknown),
        };
        Ok(statement)
    }

    /// Settings mean nothing here, but nobody may think to have given up rights.
    fn set(&mut self) -> Result<Statement, Wrong> {
        while self.takes_word("session") || self.takes_word("local") {}
        match self.takes_word("role") || self.takes_word("authorization") {
            true => Err(Wrong::Unknown),
            false => Ok(Statement::Acknowledge("SET")),
        }
    }

    fn show(&mut self) -> Result<Show, Wrong> {
        Ok(match self.name()?.as_str() {
            "slots" => Show::Slots,
            "clients" => Show::Clients,
            "upstream" => Show::Upstream,
            "spool" => Show::Spool,
            "config" => Show::Config,
            "version" => Show::Version,
            "help" => Show::Help,
            _ => return Err(Wrong::Unknown),
        })
    }

    /// A slot's name, however it is quoted.
    fn slot(&mut self) -> Result<String, Wrong> {
        match self.next() {
            Some(Token::Word(name) | Token::Quoted(name) | Token::Text(name)) => {
                Ok(cut_name(name).to_owned())
            }
            _ => Err(Wrong::Because(
                Report::error("42601", "DROP SLOT needs the name of a slot")
                    .hint("SHOW SLOTS lists them."),
            )),
        }
    }

    /// A session's number.
    fn session(&mut self) -> Result<u64, Wrong> {
        let number = match self.next() {
            Some(Token::Number(number)) => number.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| {
            Wrong::Because(
                Report::error("42601", "TERMINATE needs the number of a session")
                    .hint("SHOW CLIENTS lists them: column id."),
            )
        })
    }

    fn select(&mut self) -> Result<Statement, Wrong> {
        let mut items = vec![self.item()?];
        while self.takes_symbol(',') {
            items.push(self.item()?);
        }
        if self.takes_word("from") {
            let function = self.name()?;
            return self.select_from(items, function);
        }
        match (items.pop(), items.is_empty()) {
            (Some(Item::Number(number)), true) => Ok(Statement::Number(number)),
            (Some(Item::Call(name, arguments)), true) => call(&name, arguments),
            _ => Err(Wrong::Unknown),
        }
    }

    /// After `SELECT items FROM first`.
    fn select_from(&mut self, items: Vec<Item>, first: String) -> Result<Statement, Wrong> {
        let function = self.qualified(first)?;
        let arguments = self.arguments()?;
        let _alias = self.alias()?;
        if function != STATISTICS {
            return match items.as_slice() {
                [Item::All] => call(&function, arguments),
                _ => Err(Wrong::Unknown),
            };
        }
        if !arguments.is_empty() {
            return Err(Wrong::Because(
                Report::error("42883", format!("{STATISTICS} takes no arguments"))
                    .hint("WHERE name = 'slot' chooses one."),
            ));
        }
        let mut wanted = Statistics::default();
        for item in items {
            match item {
                Item::All => wanted.columns.extend(0..STATISTICS_COLUMNS.len()),
                Item::Column(name) => wanted.columns.push(column(&name)?),
                _ => return Err(Wrong::Unknown),
            }
        }
        if wanted.columns.len() > MOST_COLUMNS {
            let reason = format!("the console selects at most {MOST_COLUMNS} columns");
            return Err(Wrong::Because(Report::error("54011", reason)));
        }
        if self.takes_word("where") {
            wanted.slot = Some(self.condition()?);
        }
        if self.takes_word("order") {
            wanted.order = Some(self.order()?);
        }
        Ok(Statement::Statistics(wanted))
    }

    /// The last part of a name that begins with `first`, in a schema that every session sees.
    fn qualified(&mut self, first: String) -> Result<String, Wrong> {
        match self.takes_symbol('.') {
            true if matches!(first.as_str(), "public" | "pg_catalog" | "lockstep") => self.name(),
            true => Err(Wrong::Unknown),
            false => Ok(first),
        }
    }

    fn item(&mut self) -> Result<Item, Wrong> {
        let item = match self.next() {
            Some(Token::Symbol('*')) => return Ok(Item::All),
            Some(Token::Number(number)) => {
                Item::Number(number.parse().map_err(|_| Wrong::Unknown)?)
            }
            Some(Token::Word(name) | Token::Quoted(name)) => {
                let name = self.qualified(name.clone())?;
                match self.peek() {
                    Some(Token::Symbol('(')) => Item::Call(name, self.arguments()?),
                    _ => return Ok(Item::Column(name)),
                }
            }
            _ => return Err(Wrong::Unknown),
        };
        let _alias = self.alias()?;
        Ok(item)
    }

    /// `AS name`, or a name alone if it is no keyword of ours.
    fn alias(&mut self) -> Result<Option<String>, Wrong> {
        if self.takes_word("as") {
            return self.name().map(Some);
        }
        match self.peek() {
            Some(Token::Word(word)) if matches!(word.as_str(), "from" | "where" | "order") => {
                Ok(None)
            }
            Some(Token::Word(_) | Token::Quoted(_)) => self.name().map(Some),
            _ => Ok(None),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Argument>, Wrong> {
        self.expect('(')?;
        let mut arguments = Vec::new();
        if self.takes_symbol(')') {
            return Ok(arguments);
        }
        loop {
            arguments.push(match self.next() {
                Some(Token::Text(text)) => Argument::Text(text.clone()),
                Some(Token::Word(word)) if word == "null" => Argument::Null,
                _ => return Err(Wrong::Unknown),
            });
            self.cast()?;
            if !self.takes_symbol(',') {
                break;
            }
        }
        self.expect(')')?;
        Ok(arguments)
    }

    /// `::type` after a value says nothing that is not known here.
    fn cast(&mut self) -> Result<(), Wrong> {
        if self.takes_symbol(':') {
            self.expect(':')?;
            self.name()?;
        }
        Ok(())
    }

    /// `name = 'slot'` after WHERE.
    fn condition(&mut self) -> Result<String, Wrong> {
        let unknown = || {
            Wrong::Because(
                Report::error("0A000", "the console knows only WHERE name = 'slot'")
                    .hint(HELP_HINT),
            )
        };
        let name = self.name().map_err(|_| unknown())?;
        let named = column(&name)? == 0 && self.takes_symbol('=');
        match self.next() {
            Some(Token::Text(slot)) if named => {
                self.cast()?;
                Ok(slot.clone())
            }
            _ => Err(unknown()),
        }
    }

    /// `BY column` after ORDER.
    fn order(&mut self) -> Result<(usize, bool), Wrong> {
        if !self.takes_word("by") {
            return Err(Wrong::Unknown);
        }
        let name = self.name()?;
        let column = column(&name)?;
        let descending = self.takes_word("desc");
        if !descending {
            self.takes_word("asc");
        }
        Ok((column, descending))
    }
}

/// The place of a column of the statistics.
fn column(name: &str) -> Result<usize, Wrong> {
    STATISTICS_COLUMNS
        .iter()
        .position(|column| column.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = STATISTICS_COLUMNS
                .iter()
                .map(|column| column.name)
                .collect();
            let message = format!("column \"{}\" does not exist", shortened(name));
            Wrong::Because(
                Report::error("42703", message).hint(format!("There are {}.", names.join(", "))),
            )
        })
}

/// A function that returns one value.
fn call(name: &str, mut arguments: Vec<Argument>) -> Result<Statement, Wrong> {
    let wrong = |usage: &str| {
        let message = format!("{name} is not called like this");
        Err(Wrong::Because(
            Report::error("42883", message).hint(usage.to_owned()),
        ))
    };
    match name {
        RESET => match (arguments.pop(), arguments.is_empty()) {
            (Some(Argument::Text(slot)), true) => Ok(Statement::Reset(Some(slot))),
            (Some(Argument::Null), true) => Ok(Statement::Reset(None)),
            _ => wrong("Give it the name of a slot in single quotes, or NULL for all."),
        },
        OLDEST if arguments.is_empty() => Ok(Statement::OldestPointer),
        OLDEST => wrong("It takes no arguments."),
        STATISTICS => wrong("SELECT * FROM lockstep_stat_logical_wal_cache()"),
        "version" if arguments.is_empty() => Ok(Statement::SelectVersion),
        _ => Err(Wrong::Unknown),
    }
}
