//! Commands that change the schema, made on the target as the source made them.
//!
//! A command runs within the transaction of the changes around it, as the role and with the settings that it
//! had on the source. The replica's list of tables is brought up to date in the same transaction: tables
//! that the command makes join it, those that it drops leave it, and those that it renames are renamed there.
//! [`crate::ddl`] decides which statement that is, and what rows from before have in a new column.

use std::collections::BTreeMap;

use lockstep_client::{Connection, ToText, field};
use tracing::{info, warn};

use super::{SCANS_OFF, SCANS_ON, Writer};
use crate::catalog;
use crate::ddl::{Command, Fill, NewColumn, Todo, Touched, Using, fill, using};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::names::{TableName, quoted};
use crate::sessions::SILENT;

/// Whether an event trigger of the replica has written what `$2` is, which `$3` proves, and whether somebody
/// has made the command by hand that ends at `$4`. `$1` is the replica.
const PROVEN: &str = "SELECT pg_catalog.encode(pg_catalog.sha256(d.key || pg_catalog.sha256(d.key \
        || pg_catalog.convert_to($2, 'UTF8'))), 'hex') = $3, $4::pg_catalog.pg_lsn = ANY (d.made_by_hand) \
    FROM lockstep.ddl AS d WHERE d.replica = $1";

/// Forgets that replica `$1` has stopped at the command that ends at `$2`, and that it was made by hand: that
/// is part of the transaction that has the command.
const MADE: &str = "UPDATE lockstep.ddl SET made_by_hand = pg_catalog.array_remove(made_by_hand, $2::pg_catalog.pg_lsn), \
      stopped = pg_catalog.array_remove(stopped, $2::pg_catalog.pg_lsn) \
    WHERE replica = $1 AND ($2::pg_catalog.pg_lsn = ANY (made_by_hand) OR $2::pg_catalog.pg_lsn = ANY (stopped))";

/// Settings of the source's session that say what a command means.
const SETTINGS: [&str; 20] = [
    "search_path",
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "default_table_access_method",
    "default_toast_compression",
    "xmloption",
    "array_nulls",
    "standard_conforming_strings",
    "transform_null_equals",
    "backslash_quote",
    "bytea_output",
    "extra_float_digits",
    "default_text_search_config",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "quote_all_identifiers",
    "xmlbinary",
    "timezone_abbreviations",
];

/// The session's own values of `$1`, a JSON array of names, as JSON.
const OURS: &str = "SELECT pg_catalog.json_object_agg(name, pg_catalog.current_setting(name)) \
    FROM pg_catalog.json_array_elements_text($1::pg_catalog.json) AS s(name)";

/// Sets what `$1`, an object of JSON, has, for this transaction.
const SET: &str = "SELECT pg_catalog.count(pg_catalog.set_config(key, value, true)) \
    FROM pg_catalog.json_each_text($1::pg_catalog.json)";

/// Settings with which values are compared as text on both sides.
const PLAIN: &str = r#"{"TimeZone": "UTC", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres"}"#;

/// OIDs of the replica's tables that are there under the names that the state has, as an array.
const LISTED: &str = "SELECT coalesce(pg_catalog.array_agg(c.oid), '{}') FROM lockstep.table_copy AS t \
      JOIN pg_catalog.pg_class AS c ON c.oid = t.target_oid AND c.relname = t.table_name \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = t.schema_name \
    WHERE t.replica = $1";

/// Number of columns that each of these tables had, by their OIDs on the source (`$2`, an array).
const WIDTHS: &str = "SELECT t.source_oid, c.oid, c.relnatts, \
      c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid) \
    FROM lockstep.table_copy AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.target_oid \
    WHERE t.replica = $1 AND t.source_oid = ANY ($2::pg_catalog.oid[]) \
    UNION ALL SELECT asked.oid, c.oid, c.relnatts, false \
    FROM pg_catalog.json_to_recordset($3::pg_catalog.json) AS asked(oid pg_catalog.oid, \
          schema pg_catalog.name, name pg_catalog.name) \
      JOIN pg_catalog.pg_namespace AS n ON n.nspname = asked.schema \
      JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = asked.name AND c.relkind = 'p'";

/// Columns of table `$1` behind the first `$2`. Names of functions stand in no catalog for a default, but
/// their OIDs in its tree. A partitioned table has no rows: its partitions tell what rows from before have.
const NEW_COLUMNS: &str = "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), \
      a.attgenerated <> '', \
      a.attidentity <> '' OR e.tree ~ 'NEXTVALUEEXPR' OR EXISTS (SELECT \
        FROM pg_catalog.regexp_matches(e.tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') AS m \
          JOIN pg_catalog.pg_proc AS p ON p.oid = m[1]::pg_catalog.oid WHERE p.provolatile = 'v'), \
      CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] ELSE (SELECT \
          (x.attmissingval::text::text[])[1] FROM pg_catalog.pg_partition_tree(a.attrelid) AS l \
            JOIN pg_catalog.pg_attribute AS x ON x.attrelid = l.relid AND x.attname = a.attname \
              AND x.atthasmissing LIMIT 1) END, \
      e.tree IS NULL OR NOT EXISTS (SELECT FROM pg_catalog.regexp_matches(e.tree, '[{]([A-Z]+)', 'g') AS m \
          WHERE m[1] NOT IN ('CONST', 'FUNCEXPR', 'OPEXPR', 'RELABELTYPE', \
              'COERCETODOMAIN', 'ARRAYEXPR')) \
        AND e.tree !~ ':consttype (1082|1083|1114|1184|1266) ' \
        AND NOT EXISTS (SELECT \
          FROM pg_catalog.regexp_matches(e.tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') AS m \
            JOIN pg_catalog.pg_proc AS p ON p.oid = m[1]::pg_catalog.oid WHERE p.provolatile <> 'i') \
    FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid \
      LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
      CROSS JOIN LATERAL (SELECT coalesce(d.adbin, t.typdefaultbin)::pg_catalog.text) AS e(tree) \
    WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > $2::pg_catalog.int2 AND NOT a.attisdropped \
    ORDER BY a.attnum";

/// The first of these functions (`$1`) that is not immutable; what else is named (`$2`) and is no column of
/// table `$3` with a type that is written and read alike at any time; an operator of a user that is not
/// immutable, whose sign the command (`$4`) has or that a word may stand for; a cast of a user that is not
/// immutable, from or to what a function may return.
const NOT_SAME: &str = "SELECT p.proname::text FROM pg_catalog.pg_proc AS p WHERE p.provolatile <> 'i' \
      AND p.proname = ANY (ARRAY(SELECT pg_catalog.json_array_elements_text($1::pg_catalog.json))) \
    UNION ALL SELECT n.name FROM pg_catalog.json_array_elements_text($2::pg_catalog.json) AS n(name) \
      WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a \
        WHERE a.attrelid = $3::pg_catalog.oid AND a.attname = n.name AND a.atttypid IN (SAME)) \
    UNION ALL SELECT o.oprname::text FROM pg_catalog.pg_operator AS o \
      JOIN pg_catalog.pg_proc AS p ON p.oid = o.oprcode WHERE o.oid >= 16384 AND p.provolatile <> 'i' \
      AND (pg_catalog.strpos($4, o.oprname::text) > 0 OR o.oprname ~ '^([<>=]+|!?~~?[*]?)$') \
    UNION ALL SELECT p.proname::text FROM pg_catalog.pg_cast AS c \
      JOIN pg_catalog.pg_proc AS p ON p.oid = c.castfunc WHERE c.oid >= 16384 AND p.provolatile <> 'i' \
      AND (pg_catalog.json_array_length($1::pg_catalog.json) > 0 \
        OR c.castsource IN (SAME) AND c.casttarget IN (SAME)) \
    LIMIT 1";

/// The types of table `$1`, as JSON by the numbers of the columns.
const TYPES: &str = "SELECT coalesce(pg_catalog.json_object_agg(attnum, atttypid), '{}') \
    FROM pg_catalog.pg_attribute WHERE attrelid = $1::pg_catalog.oid AND attnum > 0 AND NOT attisdropped";

/// The first column of table `$1` that has another type than in `$2`, to which values are turned in a way
/// that may depend on more than the value.
const RETYPED: &str = "SELECT a.attname FROM pg_catalog.json_each_text($2::pg_catalog.json) AS o \
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = $1::pg_catalog.oid AND NOT a.attisdropped \
        AND a.attnum = o.key::pg_catalog.int2 AND a.atttypid <> o.value::pg_catalog.oid \
    WHERE NOT (a.atttypid IN (SAME) AND o.value::pg_catalog.oid IN (SAME)) \
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_cast AS c LEFT JOIN pg_catalog.pg_proc AS p ON p.oid = c.castfunc \
        WHERE c.castsource = o.value::pg_catalog.oid AND c.casttarget = a.atttypid \
          AND (c.castmethod = 'b' OR p.provolatile = 'i')) \
    ORDER BY a.attnum LIMIT 1";

/// Types whose values are written and read alike at any time: boolean, bytea, numbers, texts, json, uuid.
const SAME: &str = "16, 17, 20, 21, 23, 25, 114, 700, 701, 1042, 1043, 1700, 2950, 3802";

/// Forgets tables that were listed before (`$2`) and are gone, and renames those that have other names now.
const LEAVE: &str = "WITH gone AS (DELETE FROM lockstep.table_copy AS t WHERE t.replica = $1 \
        AND t.target_oid = ANY ($2::pg_catalog.oid[]) \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = t.target_oid) \
        RETURNING t.source_oid) \
    UPDATE lockstep.ddl AS d SET left_out = ARRAY(SELECT o FROM pg_catalog.unnest(d.left_out) AS o \
        WHERE o NOT IN (SELECT source_oid FROM gone WHERE source_oid IS NOT NULL)) \
    WHERE d.replica = $1 AND d.left_out && ARRAY(SELECT source_oid FROM gone)";
const RENAME: &str = "UPDATE lockstep.table_copy AS t SET schema_name = n.nspname, table_name = c.relname \
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE t.replica = $1 AND c.oid = t.target_oid AND c.oid = ANY ($2::pg_catalog.oid[]) \
      AND (t.schema_name, t.table_name) IS DISTINCT FROM (n.nspname::text, c.relname::text)";

/// Lists table `$2` of the source, which is called `$3`.`$4`. All of its rows are in the stream from here on,
/// unless it is left out.
const JOIN: &str = "INSERT INTO lockstep.table_copy AS t (replica, schema_name, table_name, state, start_lsn, \
      source_oid, target_oid, copied_at) \
    SELECT $1, n.nspname, c.relname, CASE WHEN EXISTS (SELECT FROM lockstep.ddl AS d WHERE d.replica = $1 \
          AND $2::pg_catalog.oid = ANY (d.left_out)) THEN 'left_out' ELSE 'copied' END, \
      '0/0', $2::pg_catalog.oid, c.oid, pg_catalog.now() \
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE n.nspname = $3 AND c.relname = $4 AND c.relkind = 'r' AND c.relpersistence = 'p' \
    ON CONFLICT (replica, schema_name, table_name) DO UPDATE SET state = excluded.state, \
      start_lsn = excluded.start_lsn, source_oid = excluded.source_oid, target_oid = excluded.target_oid, \
      copied_at = excluded.copied_at, missing_rows = 0, doubt = NULL";

/// What empties the table whose OID on the source is `$2`, unless it is left out.
const EMPTIES: &str = "SELECT pg_catalog.format('TRUNCATE ONLY %I.%I', n.nspname, c.relname) \
    FROM lockstep.table_copy AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.target_oid \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE t.replica = $1 AND t.source_oid = $2::pg_catalog.oid AND t.state <> 'left_out'";

/// What to do about a command that cannot be repeated.
const BY_HAND: &str = "either make the same change on the target by hand, so that it has the source's values, and \
    then run lockstep replica resume NAME --made-by-hand LSN with the command's position; or drop the replica \
    and create it again";

/// A table that a command is about to alter.
struct Before {
    source: u32,
    target: u32,
    columns: u32,
    /// Others inherit from it, which are no partitions.
    has_heirs: bool,
    /// Types of its columns.
    types: String,
}

impl Writer {
    /// The connection, for questions about tables as the open transaction sees them.
    pub fn asked(&mut self) -> lockstep_client::Result<&mut Connection> {
        if !self.asks {
            catalog::prepare(&mut self.connection)?;
            self.asks = true;
        }
        Ok(&mut self.connection)
    }

    /// Makes a command that changes the schema. Nothing of it is left if that fails.
    pub(super) fn command(&mut self, command: &Command) -> Result<()> {
        let of: [&dyn ToText; 4] = [
            &self.replica,
            &command.proven,
            &command.digits,
            &command.lsn,
        ];
        let rows = self
            .connection
            .query_with(PROVEN, &of)
            .map_err(ApplyError::Target)?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let is_proven = field::<Option<bool>>(row, 0).map_err(ApplyError::Target)?;
        let by_hand = field::<Option<bool>>(row, 1).map_err(ApplyError::Target)?;
        if is_proven != Some(true) {
            warn!(
                "a message at {} that looks like a command was written by somebody else than this replica's \
                 event trigger, and is ignored",
                command.lsn
            );
            return Ok(());
        }
        let shown = command.shown();
        let asked = |error| ApplyError::on_command(command.named(), error);
        let listed = self.listed().map_err(asked)?;
        for touched in command.captured.tables.iter().filter(|one| one.anew) {
            self.empty(touched).map_err(asked)?;
        }
        match by_hand {
            Some(true) => info!("a command was made by hand: {shown}"),
            _ => self.run_command(command)?,
        }
        if let Some(words) = self.list_anew(command, &listed).map_err(asked)? {
            let todo =
                "make it there as it is on the source; the command is then tried again by itself";
            return Err(ApplyError::not_followed(command.named(), words, todo));
        }
        self.connection
            .query_with(MADE, &[&self.replica, &command.lsn])
            .map_err(asked)?;
        failpoint::APPLY_ALTERED.reach();
        info!("a command of the source is made: {shown}");
        Ok(())
    }

    /// The replica's tables that are there under their names, as an array of OIDs.
    fn listed(&mut self) -> lockstep_client::Result<String> {
        let rows = self.connection.query_with(LISTED, &[&self.replica])?;
        field(rows.first().map_or(&[][..], Vec::as_slice), 0)
    }

    /// Empties a table whose rows come behind the command.
    fn empty(&mut self, touched: &Touched) -> lockstep_client::Result<()> {
        let rows = (self.connection).query_with(EMPTIES, &[&self.replica, &touched.oid])?;
        for row in rows {
            let sql: String = field(&row, 0)?;
            self.connection.execute(&sql)?;
        }
        Ok(())
    }

    fn run_command(&mut self, command: &Command) -> Result<()> {
        let stop = |words: String| ApplyError::not_followed(command.named(), words, BY_HAND);
        let refused = |error| ApplyError::on_command(command.named(), error);
        let text = match &command.todo {
            Todo::Run(text) => text,
            Todo::Stop(words) => return Err(stop(words.clone())),
        };
        let before = self.before(&command.captured.tables).map_err(refused)?;
        let using = using(text, command.captured.plain_strings());
        if let Some(words) = self.other_values(text, &using, &before).map_err(refused)? {
            return Err(stop(words));
        }
        self.run_as(command, text)?;
        if let Some(words) = self.retyped(&before).map_err(refused)? {
            return Err(stop(words));
        }
        for touched in &command.captured.tables {
            let of = before.iter().find(|one| one.source == touched.oid);
            if let Some(words) = of
                .map_or(Ok(None), |of| self.fill(of, touched))
                .map_err(refused)?
            {
                return Err(stop(words));
            }
            self.identify(touched).map_err(refused)?;
        }
        Ok(())
    }

    /// Runs a statement as the source's role, with the source's settings.
    fn run_as(&mut self, command: &Command, text: &str) -> Result<()> {
        let refused = |error| ApplyError::on_command(command.named(), error);
        let captured = &command.captured;
        let role = captured.role.clone().unwrap_or_default();
        let found = "SELECT pg_catalog.pg_has_role(current_user, oid, 'MEMBER') \
                     FROM pg_catalog.pg_roles WHERE rolname = $1";
        let rows = self
            .connection
            .query_with(found, &[&role])
            .map_err(refused)?;
        let may_be = rows.first().map(|row| field::<bool>(row, 0)).transpose();
        let why = match may_be.map_err(refused)? {
            Some(true) => None,
            Some(false) => Some(format!(
                "the replica's role on the target may not become role {}, which ran it",
                quoted(&role)
            )),
            None => Some(format!(
                "the target has no role {}, which ran it",
                quoted(&role)
            )),
        };
        if let Some(why) = why {
            let todo = "create the role on the target or grant it to the replica's role there; the command is \
                        then tried again by itself";
            return Err(ApplyError::not_followed(command.named(), why, todo));
        }
        let wanted = captured.settings.iter();
        let wanted = wanted.map(|(name, value)| (name.as_str(), value.as_str()));
        let wanted = wanted.filter(|(name, _)| SETTINGS.contains(name));
        // The source has checked them, and temporary tables that they may name are not here.
        let wanted: BTreeMap<_, _> = wanted.chain([("check_function_bodies", "off")]).collect();
        let names = wanted.keys().copied().chain(["role"]);
        let names = serde_json::Value::from_iter(names).to_string();
        let wanted = serde_json::json!(wanted).to_string();
        let mut run = || -> lockstep_client::Result<()> {
            let rows = self.connection.query_with(OURS, &[&names])?;
            let ours: String = field(rows.first().map_or(&[][..], Vec::as_slice), 0)?;
            self.connection.execute(SCANS_ON)?;
            self.connection
                .execute(&SILENT.replace(", false)", ", true)"))?;
            self.connection.query_with(SET, &[&wanted])?;
            let as_role = format!("SET LOCAL ROLE {}", quoted(&role));
            self.connection.execute(&as_role)?;
            // One statement, whatever its text is.
            self.connection.query_with(text, &[])?;
            self.connection.execute("SET LOCAL ROLE NONE")?;
            self.connection.query_with(SET, &[&ours])?;
            self.connection.execute(SCANS_OFF)
        };
        run().map_err(refused)
    }

    /// What the tables are before a command. New ones are not among them.
    fn before(&mut self, touched: &[Touched]) -> lockstep_client::Result<Vec<Before>> {
        let oids = crate::described::oids(touched.iter().map(|one| one.oid));
        let asked = touched
            .iter()
            .map(|one| serde_json::json!({"oid": one.oid, "schema": one.schema, "name": one.name}));
        let asked = serde_json::Value::from_iter(asked).to_string();
        let rows = (self.connection).query_with(WIDTHS, &[&self.replica, &oids, &asked])?;
        let read = |row: &Vec<Option<String>>| {
            Ok(Before {
                source: field(row, 0)?,
                target: field(row, 1)?,
                columns: field(row, 2)?,
                has_heirs: field(row, 3)?,
                types: String::new(),
            })
        };
        let read: lockstep_client::Result<Vec<_>> = rows.iter().map(read).collect();
        let mut before = read?;
        for one in &mut before {
            let rows = self.connection.query_with(TYPES, &[&one.target])?;
            one.types = field(rows.first().map_or(&[][..], Vec::as_slice), 0)?;
        }
        Ok(before)
    }

    /// Why a command that computes rows anew might give them other values than the source's.
    fn other_values(
        &mut self,
        text: &str,
        using: &Using,
        before: &[Before],
    ) -> lockstep_client::Result<Option<String>> {
        for table in before {
            let called = match using {
                Using::Moment(name) => Some(name.clone()),
                Using::Names { functions, others } if functions.is_empty() && others.is_empty() => {
                    None
                }
                Using::Names { functions, others } => {
                    let [functions, others] =
                        [functions, others].map(|names| serde_json::json!(names).to_string());
                    let sql = NOT_SAME.replace("SAME", SAME);
                    let of: [&dyn ToText; 4] = [&functions, &others, &table.target, &text];
                    let rows = self.connection.query_with(&sql, &of)?;
                    rows.first().map(|row| field(row, 0)).transpose()?
                }
            };
            let Some(called) = called else {
                continue;
            };
            let name = self.name(table.target)?;
            if self.has_rows(&name)? {
                return Ok(Some(format!(
                    "it computes rows of table {name} anew with {called}, which may give other values here than \
                     on the source"
                )));
            }
        }
        Ok(None)
    }

    /// Why a column that has another type now may have other values than the source's.
    fn retyped(&mut self, before: &[Before]) -> lockstep_client::Result<Option<String>> {
        let sql = RETYPED.replace("SAME", SAME);
        for table in before {
            let rows = (self.connection).query_with(&sql, &[&table.target, &table.types])?;
            let Some(row) = rows.first() else { continue };
            let column: String = field(row, 0)?;
            let name = self.name(table.target)?;
            if self.has_rows(&name)? {
                return Ok(Some(format!(
                    "it computes column {} of table {name} anew, in a way that may give other values here than on \
                     the source",
                    quoted(&column)
                )));
            }
        }
        Ok(None)
    }

    fn name(&mut self, oid: u32) -> lockstep_client::Result<TableName> {
        let sql = "SELECT n.nspname, c.relname FROM pg_catalog.pg_class AS c \
                   JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                   WHERE c.oid = $1::pg_catalog.oid";
        let rows = self.connection.query_with(sql, &[&oid])?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        Ok(TableName {
            schema: field(row, 0)?,
            table: field(row, 1)?,
        })
    }

    fn has_rows(&mut self, table: &TableName) -> lockstep_client::Result<bool> {
        self.connection.execute(SCANS_ON)?;
        let sql = format!("SELECT EXISTS (SELECT FROM {})", table.sql());
        let row = self.connection.query_one(&sql)?;
        self.connection.execute(SCANS_OFF)?;
        field(&row, 0)
    }

    /// Gives rows from before what they have on the source in new columns. Returns why that is not known.
    fn fill(
        &mut self,
        before: &Before,
        touched: &Touched,
    ) -> lockstep_client::Result<Option<String>> {
        let rows = (self.connection).query_with(SET, &[&PLAIN]).and_then(|_| {
            self.connection
                .query_with(NEW_COLUMNS, &[&before.target, &before.columns])
        })?;
        let table = touched.table();
        for row in rows {
            let column = NewColumn {
                name: field(&row, 0)?,
                is_generated: field(&row, 2)?,
                is_volatile: field::<Option<bool>>(&row, 3)?.unwrap_or(false),
                missing: field(&row, 4)?,
                is_constant: field(&row, 5)?,
            };
            let filled = fill(&column, touched);
            if filled == Fill::Nothing || !self.has_rows(&table)? {
                continue;
            }
            let name = quoted(&column.name);
            let Fill::Set(value) = filled else {
                let why = match column.is_volatile {
                    true => "has another value in each row",
                    false => {
                        "has a default that is not a constant, while the source writes the table anew"
                    }
                };
                return Ok(Some(format!(
                    "column {name}, which it adds to table {table}, {why}, and the source's values are not in the \
                     stream"
                )));
            };
            if before.has_heirs {
                return Ok(Some(format!(
                    "column {name}, which it adds to table {table} and the tables that inherit from it, has \
                     another value here in rows from before"
                )));
            }
            let kind: String = field(&row, 1)?;
            let sql = format!(
                "UPDATE {} SET {name} = $1::pg_catalog.text::{kind}",
                table.sql()
            );
            self.connection.execute(SCANS_ON)?;
            self.connection.query_with(&sql, &[&value])?;
            self.connection.execute(SCANS_OFF)?;
        }
        Ok(None)
    }

    /// Gives a table the replica identity that the source's event trigger has given it.
    fn identify(&mut self, touched: &Touched) -> lockstep_client::Result<()> {
        match touched.identity.as_deref() {
            Some(identity @ ("FULL" | "DEFAULT")) => {
                let name = touched.table().sql();
                let sql = format!("ALTER TABLE ONLY {name} REPLICA IDENTITY {identity}");
                self.connection.execute(&sql)
            }
            _ => Ok(()),
        }
    }

    /// Brings the replica's list of tables up to date. Returns why that is not possible.
    fn list_anew(
        &mut self,
        command: &Command,
        listed: &str,
    ) -> lockstep_client::Result<Option<String>> {
        self.connection
            .query_with(LEAVE, &[&self.replica, &listed])?;
        self.connection
            .query_with(RENAME, &[&self.replica, &listed])?;
        for joins in command.captured.tables.iter().filter(|one| one.joins) {
            if !self.is_there(&joins.table())? {
                return Ok(Some(format!(
                    "the target has no table {} afterwards",
                    joins.table()
                )));
            }
            let of: [&dyn ToText; 4] = [&self.replica, &joins.oid, &joins.schema, &joins.name];
            self.connection.query_with(JOIN, &of)?;
        }
        Ok(None)
    }

    fn is_there(&mut self, table: &TableName) -> lockstep_client::Result<bool> {
        let sql = "SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n \
                     ON n.oid = c.relnamespace \
                   WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";
        let rows = self
            .connection
            .query_with(sql, &[&table.schema, &table.table])?;
        Ok(!rows.is_empty())
    }
}
