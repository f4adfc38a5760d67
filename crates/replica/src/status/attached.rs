//! Partitions that the publication has had since a time after the copy, and that had rows before: those are
//! in no stream. What is in a table says that, as long as its rows and the transaction that attached it tell
//! their age. So each partition is looked at once, and the answer is kept.
//!
//! Not seen are rows that another session wrote while the transaction that attached the table had already
//! changed something else. `verify` compares them.

use lockstep_client::{ClientError, Connection, field};

use super::lost::{Lost, Why};
use crate::names::TableName;
use crate::state::{Attached, json_array};

/// Pages of a table that are looked at: this many first ones, and as many others all over the table.
const PAGES: u32 = 100;

/// Rows of each of those others that are looked at.
const ROWS: u32 = 20;

/// What is done to wait for nothing long, and to be refused rows rather than not to see them.
const SETTINGS: &str =
    "SET lock_timeout = '1s'; SET statement_timeout = '3s'; SET row_security = off";

/// SQLSTATEs of a table or a schema that is no longer there.
const GONE: [&str; 2] = ["42P01", "3F000"];

/// A partition that was not copied, with what made it part of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Later {
    pub table: TableName,
    oid: u32,
    /// The transaction that attached it, or a table above it, or put it into the publication.
    transaction: String,
    /// The number of the command in that transaction.
    command: String,
    /// The table that it was attached to, if it was.
    above: Option<TableName>,
    /// The columns that are not generated, for SQL.
    columns: String,
}

/// When each partition of `$2` came into a publication of `$1`. If several tables above it, or it, are
/// published, the first time counts; under one of them it came with the last of what lies between both.
const LATER: &str = "
SELECT n.nspname, c.relname, c.oid, w.since, w.command, an.nspname, a.relname,
    (SELECT string_agg(quote_ident(k.attname), ', ' ORDER BY k.attnum) FROM pg_attribute k
        WHERE k.attrelid = c.oid AND k.attnum > 0 AND NOT k.attisdropped AND k.attgenerated = '')
FROM json_array_elements($2::json) s JOIN pg_namespace n ON n.nspname = s ->> 0
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s ->> 1
    CROSS JOIN LATERAL (
        SELECT e.* FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                AND p.pubname IN (SELECT json_array_elements_text($1::json))
            JOIN pg_partition_ancestors(c.oid) t ON t.relid = r.prrelid
            CROSS JOIN LATERAL (
                SELECT * FROM (
                    SELECT r.xmin AS since, r.cmin::text::bigint AS command, NULL::oid AS above
                    UNION ALL
                    SELECT i.xmin, i.cmin::text::bigint, i.inhparent
                    FROM pg_partition_ancestors(c.oid) o JOIN pg_inherits i ON i.inhrelid = o.relid
                    WHERE o.relid <> r.prrelid
                        AND r.prrelid IN (SELECT u.relid FROM pg_partition_ancestors(o.relid) u)) x
                ORDER BY age(x.since), x.command DESC LIMIT 1) e
        ORDER BY age(e.since) DESC, e.command LIMIT 1) w
    LEFT JOIN (pg_class a JOIN pg_namespace an ON an.oid = a.relnamespace) ON a.oid = w.above
ORDER BY 1, 2";

/// What is known of later partitions.
pub fn later(
    source: &mut Connection,
    publications: &[String],
    tables: &[TableName],
) -> Result<Vec<Later>, ClientError> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<_> = (tables.iter())
        .map(|name| (&name.schema, &name.table))
        .collect();
    let names = serde_json::json!(names).to_string();
    let rows = source.query_with(LATER, &[&json_array(publications), &names])?;
    let read = |row: &Vec<Option<String>>| {
        let name = |place| -> Result<Option<TableName>, ClientError> {
            let (schema, table) = (field(row, place)?, field(row, place + 1)?);
            let both = Option::<String>::zip(schema, table);
            Ok(both.map(|(schema, table)| TableName { schema, table }))
        };
        let of = || ClientError::Protocol("a table without a name".to_owned());
        Ok(Later {
            table: name(0)?.ok_or_else(of)?,
            oid: field(row, 2)?,
            transaction: field(row, 3)?,
            command: field(row, 4)?,
            above: name(5)?,
            columns: field::<Option<String>>(row, 7)?.unwrap_or_default(),
        })
    };
    rows.iter().map(read).collect()
}

/// What some pages of table `{table}` say, whose OID is `$3`, and which was attached by command `$2` of
/// transaction `$1`. Rows of that transaction know their command as long as nothing has locked or changed
/// them. A row whose transaction is no longer of the last two thousand million is older than any other. A
/// change that writes the table anew makes all rows as new as itself, and as some part of the table's
/// definition.
fn look_sql(table: &TableName) -> String {
    let table = table.sql();
    format!(
        "
WITH size AS (
    SELECT pg_relation_size($3::oid) / current_setting('block_size')::bigint AS pages
), seen AS (
    SELECT t.tableoid, t.xmin, t.xmax, t.cmin FROM ONLY {table} t WHERE t.ctid < '({PAGES},0)'::tid
    UNION ALL
    SELECT t.tableoid, t.xmin, t.xmax, t.cmin FROM ONLY {table} t WHERE t.ctid = ANY (ARRAY(
        SELECT format('(%s,%s)', (pages - 1) * page / {PAGES}, item)::tid
        FROM size, generate_series(1, {PAGES}) page, generate_series(1, {ROWS}) item
        WHERE pages > {PAGES}))
), found AS MATERIALIZED (
    SELECT t.xmin AS made, age(t.xmin) > age($1::xid) OR age(t.xmin) < 0
        OR t.xmin = $1::xid AND t.xmax = '0'::xid AND t.cmin::text::bigint < $2::bigint AS is_older
    FROM seen t WHERE t.tableoid = $3::oid
), definition AS (
    SELECT c.xmin AS made FROM pg_class c WHERE c.oid = $3::oid AND c.relfilenode <> c.oid
    UNION
    SELECT a.xmin FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    WHERE c.oid = $3::oid AND c.relfilenode <> c.oid
)
SELECT CASE WHEN EXISTS (SELECT FROM found WHERE is_older) THEN 'older'
    WHEN EXISTS (SELECT FROM found f JOIN definition d ON d.made = f.made WHERE f.made <> $1::xid)
        THEN 'rewritten'
    WHEN NOT EXISTS (SELECT FROM found)
        AND (SELECT pages FROM size) > {PAGES} THEN 'hollow'
    ELSE 'whole' END"
    )
}

/// What a look at a partition has found.
enum Found {
    /// No row is older than its place in the publication.
    Whole,
    Older,
    /// Why that is not known.
    Unknown(String),
    /// The partition is no longer there.
    Gone,
}

fn look_at(source: &mut Connection, one: &Later) -> Result<Found, ClientError> {
    let asked = source.query_with(
        &look_sql(&one.table),
        &[&one.transaction, &one.command, &one.oid],
    );
    let rows = match asked {
        Ok(rows) => rows,
        Err(error) => {
            return match error.refusal() {
                Some(refusal) if GONE.contains(&refusal.sqlstate.as_str()) => Ok(Found::Gone),
                Some(_) => Ok(Found::Unknown(error.words())),
                None => Err(error),
            };
        }
    };
    let said: String = field(rows.first().map_or(&[][..], Vec::as_slice), 0)?;
    Ok(match said.as_str() {
        "whole" => Found::Whole,
        "older" => Found::Older,
        "rewritten" => Found::Unknown("it was rewritten since".to_owned()),
        _ => Found::Unknown("it has no row in the pages that were looked at".to_owned()),
    })
}

/// What the state is to keep of partitions, and those of which rows are missing or may be. `known` is
/// what the state has; of others the source is asked.
pub fn look(
    later: &[Later],
    known: &[Attached],
    connect: impl FnOnce() -> Result<Connection, ClientError>,
) -> Result<(Vec<Attached>, Vec<Lost>), ClientError> {
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    let (old, new): (Vec<_>, Vec<_>) = (later.iter())
        .map(|one| (one, one.known_as(known)))
        .partition(|(_, known)| known.is_some());
    for (one, known) in old {
        kept.extend(known.cloned());
        lost.extend((known.is_some_and(|known| !known.is_whole)).then(|| one.older()));
    }
    if new.is_empty() {
        return Ok((kept, lost));
    }
    let mut source = connect()?;
    source.execute(SETTINGS)?;
    for (one, _) in new {
        match look_at(&mut source, one)? {
            Found::Whole => kept.push(one.kept(true)),
            Found::Older => {
                kept.push(one.kept(false));
                lost.push(one.older());
            }
            Found::Unknown(why) => lost.push(Lost {
                table: one.table.clone(),
                why: Why::PerhapsOlder(one.since(), why),
            }),
            Found::Gone => {}
        }
    }
    lost.sort_by(|one, other| one.table.cmp(&other.table));
    Ok((kept, lost))
}

impl Later {
    /// What the state has of it as it is attached now.
    fn known_as<'a>(&self, known: &'a [Attached]) -> Option<&'a Attached> {
        (known.iter()).find(|known| known.oid == self.oid && known.since == self.key())
    }

    fn key(&self) -> String {
        format!("{}/{}", self.transaction, self.command)
    }

    /// What the state keeps of it.
    pub fn kept(&self, is_whole: bool) -> Attached {
        Attached {
            oid: self.oid,
            since: self.key(),
            is_whole,
        }
    }

    /// What made it part of the publication, in words.
    fn since(&self) -> String {
        match &self.above {
            Some(above) => format!("it was attached to {above}"),
            None => "the publication had it".to_owned(),
        }
    }

    fn older(&self) -> Lost {
        Lost {
            table: self.table.clone(),
            why: Why::Older(self.since(), self.sends_again()),
        }
    }

    /// Statements for the source that put all rows of it into the stream.
    fn sends_again(&self) -> String {
        let (table, columns) = (self.table.sql(), &self.columns);
        format!(
            "BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; CREATE TEMP TABLE lockstep_rows ON COMMIT \
             DROP AS SELECT {columns} FROM {table}; TRUNCATE {table}; INSERT INTO {table} ({columns}) \
             OVERRIDING SYSTEM VALUE SELECT {columns} FROM lockstep_rows; COMMIT;"
        )
    }
}
