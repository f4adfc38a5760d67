//! The statements that change the target, as text. Values are parameters: an array for each
//! column. No I/O.
//!
//! Names in a statement: `t` is the table, `u` the rows given; `k1`, `k2`, ... are the columns of
//! the key before, `c1`, ... the columns after. Numbers are places in [`Table::columns`] plus one. `m` has
//! a bit for each column that some rows keep because the source has not sent it. A column of flags for each
//! would not fit beside a table's 1,600: the server takes 1,664 in a row.

use crate::keys::packable;
use crate::names::quoted;
use crate::source_table::{Identity, KeyColumn};
use crate::table::{Table, TargetColumn};

/// What a statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Insert,
    /// The keys stay.
    Update,
    /// An update as well, but the rows are deleted first and then inserted: keys may change, and values
    /// of unique columns may change places.
    Replace,
    Delete,
    /// Deletes rows whose keys are packed ([`crate::keys`]) as runs, or as distances.
    DeleteRuns,
    DeleteOffsets,
}

/// One parameter of a statement: which values its array holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// The key's column at this place, before the change.
    Key(usize),
    /// The column at this place, after the change.
    New(usize),
    /// Which of [`Statement::keeps`] keep their values, a bit for each.
    Keeps,
}

/// A statement and what its parameters are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub sql: String,
    pub parameters: Vec<Parameter>,
    /// Keys are compared, and given, as text.
    pub keys_are_text: bool,
    /// Places of the columns that some rows keep.
    pub keeps: Vec<usize>,
}

impl Table {
    fn target(&self) -> String {
        match self.partitioned {
            true => self.name.sql(),
            false => format!("ONLY {}", self.name.sql()),
        }
    }

    /// Columns that statements write: places and columns.
    pub fn written(&self) -> impl Iterator<Item = (usize, &TargetColumn)> {
        let columns = self.columns.iter().enumerate();
        columns.filter(|(_, column)| !column.generated)
    }

    /// Names of the columns that statements write, for INSERT and COPY.
    pub fn written_names(&self) -> String {
        let names: Vec<_> = self.written().map(|(_, it)| quoted(&it.name)).collect();
        names.join(", ")
    }

    fn key_columns(&self) -> &[KeyColumn] {
        match &self.identity {
            Identity::Key(key) => key,
            Identity::Whole | Identity::Nothing => &[],
        }
    }

    /// UPDATE can be used for rows whose key stays. Otherwise they are replaced: UPDATE refuses to
    /// set an identity column that is always generated.
    pub fn can_update(&self) -> bool {
        let key = self.key();
        self.written()
            .all(|(place, column)| key.contains(&place) || !column.always_identity)
    }

    /// A statement for a set of rows. `keeps` are the columns that some of the rows keep.
    pub fn statement(&self, verb: Verb, keeps: &[usize]) -> Statement {
        let mut given = Given::default();
        let sql = match verb {
            Verb::Insert => self.insert(&mut given),
            Verb::Update => self.update(keeps, &mut given),
            Verb::Replace => self.replace(keeps, &mut given),
            Verb::Delete => self.delete(&mut given),
            Verb::DeleteRuns => self.delete_runs(),
            Verb::DeleteOffsets => self.delete_offsets(),
        };
        Statement {
            sql,
            parameters: given.parameters,
            keys_are_text: !self.is_indexed(),
            keeps: keeps.to_vec(),
        }
    }

    fn insert(&self, given: &mut Given) -> String {
        for (place, column) in self.written() {
            given.column(Parameter::New(place), column);
        }
        let values: Vec<_> = self
            .written()
            .map(|(place, column)| value(Parameter::New(place), column, "u"))
            .collect();
        format!(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}",
            self.name.sql(),
            self.written_names(),
            values.join(", "),
            given.rows("")
        )
    }

    /// The condition that finds the rows `u` in `t`.
    fn found(&self, given: &mut Given) -> String {
        let mut conditions = Vec::new();
        let is_indexed = self.is_indexed();
        for key in self.key_columns() {
            let Some(column) = self.columns.get(key.place) else {
                continue;
            };
            let parameter = Parameter::Key(key.place);
            let name = quoted(&column.name);
            conditions.push(match key.operator.as_ref().filter(|_| is_indexed) {
                Some(operator) => {
                    given.column(parameter, column);
                    let value = value(parameter, column, "u");
                    format!("t.{name} OPERATOR({operator}) {value}")
                }
                None => {
                    given.text(parameter);
                    let given = alias(parameter);
                    // What the type's output function gives, as the source does; a cast may differ.
                    format!(
                        "pg_catalog.num_nulls(t.{name}) = 0 \
                         AND pg_catalog.format('%s', t.{name}) = u.{given}"
                    )
                }
            });
        }
        conditions.join(" AND ")
    }

    fn delete(&self, given: &mut Given) -> String {
        if let Some(listed) = self.listed(given) {
            return format!("DELETE FROM {} AS t WHERE {listed}", self.target());
        }
        let found = self.found(given);
        format!(
            "DELETE FROM {} AS t USING {} WHERE {found}",
            self.target(),
            given.rows("")
        )
    }

    /// The condition that the key is one of a list: without a join, which takes the server a third more
    /// work for each row. Only for a key of one column, and not for a partitioned table: of a join the
    /// server looks each row up in its own partition, of a list that is a parameter all rows in
    /// every partition.
    fn listed(&self, given: &mut Given) -> Option<String> {
        let [key] = self.key_columns() else {
            return None;
        };
        let column = self.columns.get(key.place).filter(|it| it.in_array)?;
        let operator = key.operator.as_ref().filter(|_| !self.partitioned)?;
        given.column(Parameter::Key(key.place), column);
        let (name, kind) = (quoted(&column.name), &column.kind);
        Some(format!("t.{name} OPERATOR({operator}) ANY ($1::{kind}[])"))
    }

    fn delete_runs(&self) -> String {
        let (name, kind) = packable(self).unwrap_or_default();
        let key = format!("t.{}", quoted(name));
        // Only without a schema does `unnest` take several arrays.
        format!(
            "DELETE FROM {} AS t \
             USING unnest($1::pg_catalog.int8[], $2::pg_catalog.int8[]) AS u(a, z) \
             WHERE {key} OPERATOR(pg_catalog.>=) u.a::{kind} \
             AND {key} OPERATOR(pg_catalog.<=) u.z::{kind}",
            self.target()
        )
    }

    /// `$1` has the distances from `$2` one behind the other, `$3` bits each, `$4` in all.
    fn delete_offsets(&self) -> String {
        let (name, kind) = packable(self).unwrap_or_default();
        format!(
            "DELETE FROM {} AS t WHERE t.{} OPERATOR(pg_catalog.=) ANY (ARRAY(SELECT \
               ($2::pg_catalog.int8 OPERATOR(pg_catalog.+) pg_catalog.int8(pg_catalog.substring(\
                 $1::pg_catalog.varbit, \
                 n OPERATOR(pg_catalog.*) $3::pg_catalog.int4 OPERATOR(pg_catalog.+) 1, \
                 $3::pg_catalog.int4)))::{kind} \
             FROM pg_catalog.generate_series(0, $4::pg_catalog.int4 OPERATOR(pg_catalog.-) 1) AS n))",
            self.target(),
            quoted(name)
        )
    }

    /// Columns whose values come with the rows, but for those of the key if it stays.
    fn new_columns(&self, keeps: &[usize], with_key: bool, given: &mut Given) {
        let key = self.key();
        for (place, column) in self.written() {
            if with_key || !key.contains(&place) {
                given.column(Parameter::New(place), column);
            }
        }
        if !keeps.is_empty() {
            given.push(Parameter::Keeps, "pg_catalog.varbit".to_owned());
        }
    }

    /// The value of a column after the change, for a row `u` that is `t` before.
    fn after(place: usize, column: &TargetColumn, keeps: &[usize]) -> String {
        let new = value(Parameter::New(place), column, "u");
        match keeps.iter().position(|of| *of == place) {
            Some(bit) => format!(
                "CASE WHEN pg_catalog.get_bit(u.m, {bit}) = 1 THEN t.{} ELSE {new} END",
                quoted(&column.name)
            ),
            None => new,
        }
    }

    fn update(&self, keeps: &[usize], given: &mut Given) -> String {
        let found = self.found(given);
        self.new_columns(keeps, false, given);
        let key = self.key();
        let sets: Vec<_> = (self.written())
            .filter(|(place, _)| !key.contains(place))
            .map(|(place, column)| {
                let after = Self::after(place, column, keeps);
                format!("{} = {after}", quoted(&column.name))
            })
            .collect();
        format!(
            "UPDATE {} AS t SET {} FROM {} WHERE {found}",
            self.target(),
            sets.join(", "),
            given.rows("")
        )
    }

    /// The sort reads all of what DELETE returns before the first row is inserted, so no row is
    /// in the way of another that is replaced as well.
    fn replace(&self, keeps: &[usize], given: &mut Given) -> String {
        let found = self.found(given);
        self.new_columns(keeps, true, given);
        let mut returned = vec!["u.ord".to_owned()];
        let mut names = Vec::new();
        let mut values = Vec::new();
        for (place, column) in self.written() {
            let alias = alias(Parameter::New(place));
            names.push(quoted(&column.name));
            let after = Self::after(place, column, keeps);
            returned.push(format!("{after} AS {alias}"));
            values.push(format!("gone.{alias}"));
        }
        for (number, name) in self.kept.iter().enumerate() {
            returned.push(format!("t.{} AS x{number}", quoted(name)));
            names.push(quoted(name));
            values.push(format!("gone.x{number}"));
        }
        format!(
            "WITH gone AS (DELETE FROM {} AS t USING {} WHERE {found} RETURNING {}) \
             INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM gone ORDER BY gone.ord",
            self.target(),
            given.rows("ord"),
            returned.join(", "),
            self.name.sql(),
            names.join(", "),
            values.join(", ")
        )
    }

    /// Deletes as many rows as `$1` says, whichever they are: the source sends no column, so all are equal.
    pub fn delete_any(&self) -> String {
        let target = self.target();
        format!(
            "WITH f AS (SELECT t.ctid AS at, t.tableoid AS tab FROM {target} AS t LIMIT $1) \
             DELETE FROM {target} AS t USING f WHERE t.ctid = f.at AND t.tableoid = f.tab"
        )
    }

    /// Deletes for each given row one of the rows that are equal to it, by the text of all
    /// values. Parameters are the rows' columns.
    pub fn delete_whole(&self) -> Statement {
        let mut given = Given::default();
        let found = self.whole(Parameter::Key, &mut given);
        Statement {
            sql: format!("{found} DELETE FROM {} AS t {THOSE}", self.target()),
            parameters: given.parameters,
            keys_are_text: false,
            keeps: Vec::new(),
        }
    }

    /// Replaces for each given row one of the rows that are equal to it.
    pub fn update_whole(&self) -> Statement {
        let mut given = Given::default();
        let mut found = self.whole(Parameter::Key, &mut given);
        let mut after = Given {
            parameters: Vec::new(),
            columns: Vec::new(),
            first: given.parameters.len(),
        };
        for (place, column) in self.written() {
            after.column(Parameter::New(place), column);
        }
        let mut returned = vec!["r.ord".to_owned()];
        let mut names = vec![self.written_names()];
        let mut values: Vec<_> = self
            .written()
            .map(|(place, column)| value(Parameter::New(place), column, "u"))
            .collect();
        for (number, name) in self.kept.iter().enumerate() {
            returned.push(format!("t.{} AS x{number}", quoted(name)));
            names.push(quoted(name));
            values.push(format!("gone.x{number}"));
        }
        found.push_str(&format!(
            ", gone AS (DELETE FROM {} AS t {THOSE} RETURNING {}) INSERT INTO {} ({}) \
             OVERRIDING SYSTEM VALUE SELECT {} FROM gone JOIN {} USING (ord) ORDER BY ord",
            self.target(),
            returned.join(", "),
            self.name.sql(),
            names.join(", "),
            values.join(", "),
            after.rows("ord")
        ));
        given.parameters.extend(after.parameters);
        Statement {
            sql: found,
            parameters: given.parameters,
            keys_are_text: false,
            keeps: Vec::new(),
        }
    }

    /// `WITH` queries: `r` are the given rows, `f` the target's rows that are equal to one of
    /// them; equal rows are counted in both.
    fn whole(&self, parameter: fn(usize) -> Parameter, given: &mut Given) -> String {
        let mut theirs = Vec::new();
        let mut ours = Vec::new();
        for (place, column) in self.written() {
            let of = parameter(place);
            given.column(of, column);
            theirs.push(value(of, column, "u"));
            ours.push(format!("t.{}", quoted(&column.name)));
        }
        format!(
            "WITH r AS (SELECT ord, line, row_number() OVER (PARTITION BY line) AS n \
               FROM (SELECT u.ord, ROW({})::pg_catalog.text AS line FROM {}) AS s), \
             f AS (SELECT at, tab, line, row_number() OVER (PARTITION BY line) AS n \
               FROM (SELECT t.ctid AS at, t.tableoid AS tab, ROW({})::pg_catalog.text AS line \
                     FROM {} AS t) AS s \
               WHERE line IN (SELECT line FROM r))",
            theirs.join(", "),
            given.rows("ord"),
            ours.join(", "),
            self.target()
        )
    }

    /// COPY of the columns that statements write.
    pub fn copy(&self) -> String {
        let names = self.written_names();
        format!("COPY {} ({names}) FROM STDIN", self.name.sql())
    }

    /// Like [`Table::copy`], in binary form.
    pub fn copy_binary(&self) -> String {
        format!("{} (FORMAT binary)", self.copy())
    }
}

/// What follows `DELETE FROM table AS t` after the queries of [`Table::whole`].
const THOSE: &str = "USING f JOIN r USING (line, n) WHERE t.ctid = f.at AND t.tableoid = f.tab";

fn alias(parameter: Parameter) -> String {
    match parameter {
        Parameter::Key(place) => format!("k{}", place + 1),
        Parameter::New(place) => format!("c{}", place + 1),
        Parameter::Keeps => "m".to_owned(),
    }
}

/// A value of the rows given, with the column's type. `::` would call a cast from text that the type's
/// owner has made; JSON's strings go through the type's input function.
fn value(parameter: Parameter, column: &TargetColumn, rows: &str) -> String {
    let (alias, kind) = (alias(parameter), &column.kind);
    match (column.in_array, column.of_user) {
        (true, _) => format!("{rows}.{alias}"),
        (false, false) => format!("{rows}.{alias}::{kind}"),
        (false, true) => format!(
            "(SELECT j.v FROM pg_catalog.json_to_record(\
               pg_catalog.json_build_object('v', {rows}.{alias})) AS j(v {kind}))"
        ),
    }
}

/// The rows that a statement is given: arrays, side by side.
#[derive(Debug, Default)]
struct Given {
    parameters: Vec<Parameter>,
    /// Types of the arrays' elements.
    columns: Vec<String>,
    /// Parameters of the statement before these.
    first: usize,
}

impl Given {
    fn column(&mut self, parameter: Parameter, column: &TargetColumn) {
        match column.in_array {
            true => self.push(parameter, column.kind.clone()),
            false => self.text(parameter),
        }
    }

    fn text(&mut self, parameter: Parameter) {
        self.push(parameter, "pg_catalog.text".to_owned());
    }

    fn push(&mut self, parameter: Parameter, kind: String) {
        self.parameters.push(parameter);
        self.columns.push(kind);
    }

    /// The rows as an item of FROM. `number` names a column that counts them. Only without a
    /// schema does `unnest` take several arrays.
    fn rows(&self, number: &str) -> String {
        let arrays: Vec<_> = (self.columns.iter().enumerate())
            .map(|(place, kind)| format!("${}::{kind}[]", self.first + place + 1))
            .collect();
        let mut names: Vec<_> = self.parameters.iter().copied().map(alias).collect();
        let ordinality = match number {
            "" => "",
            number => {
                names.push(number.to_owned());
                " WITH ORDINALITY"
            }
        };
        format!(
            "unnest({}){ordinality} AS u({})",
            arrays.join(", "),
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::TableName;
    use crate::reach::Reach;

    fn column(name: &str, in_array: bool) -> TargetColumn {
        TargetColumn {
            name: name.to_owned(),
            of: crate::types::ColumnType::default(),
            kind: "pg_catalog.int8".to_owned(),
            in_array,
            of_user: false,
            delimiter: b',',
            generated: false,
            always_identity: false,
        }
    }

    fn table(columns: Vec<TargetColumn>, key: &[usize]) -> Table {
        let key = key.iter().map(|&place| KeyColumn {
            place,
            operator: Some("pg_catalog.=".to_owned()),
        });
        Table {
            name: TableName {
                schema: "s".to_owned(),
                table: "t".to_owned(),
            },
            columns,
            identity: Identity::Key(key.collect()),
            partitioned: false,
            crowded: false,
            kept: Vec::new(),
            attributes: 0,
            reach: Reach::default(),
        }
    }

    #[test]
    fn rows_are_deleted_by_a_list_of_keys_where_the_server_then_looks_each_up_once() {
        let delete = |table: &Table| table.statement(Verb::Delete, &[]);
        let pair = || vec![column("a", true), column("b", true)];
        let of_one = table(pair(), &[1]);
        let expected = Statement {
            sql: "DELETE FROM ONLY \"s\".\"t\" AS t \
                  WHERE t.\"b\" OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int8[])"
                .to_owned(),
            parameters: vec![Parameter::Key(1)],
            keys_are_text: false,
            keeps: Vec::new(),
        };
        assert_eq!(delete(&of_one), expected);
        let is_join = |table: &Table| delete(table).sql.contains(" USING unnest(");
        assert!(is_join(&table(pair(), &[0, 1])), "the key is a pair");
        let partitioned = Table {
            partitioned: true,
            ..of_one
        };
        assert!(is_join(&partitioned), "each partition would look up all");
        let of_array = table(vec![column("a", false)], &[0]);
        assert!(
            is_join(&of_array),
            "an array's elements would be taken apart"
        );
        let mut without_index = table(pair(), &[0]);
        without_index.identity = Identity::Key(vec![KeyColumn {
            place: 0,
            operator: None,
        }]);
        assert!(is_join(&without_index), "keys are compared as text");
    }

    #[test]
    fn no_list_of_a_statement_is_longer_than_the_server_takes() {
        let columns: Vec<_> = (0..1600)
            .map(|it| column(&format!("c{it}"), true))
            .collect();
        let keeps: Vec<usize> = (32..1600).collect();
        let wide = table(columns, &(0..32).collect::<Vec<_>>());
        for verb in [Verb::Update, Verb::Replace] {
            let statement = wide.statement(verb, &keeps);
            assert!(statement.parameters.len() < 1_664, "{verb:?}");
            let lists = statement.sql.split(['(', ')']);
            // Of what is between two brackets, each comma parts two entries of one list.
            let longest = lists.map(|list| list.matches(", ").count()).max();
            assert!(longest < Some(1_664), "{verb:?}: {longest:?}");
        }
    }
}
