//! Which changes of a table can meet on the target, as its catalogs say: unique indexes, exclusion
//! constraints, triggers. [`crate::touches`] has the rules, and why they are enough. No I/O.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::LazyLock;

use hashbrown::DefaultHashBuilder;

use crate::source_table::{Identity, SourceTable};

/// What a column of a unique index is to its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueColumn {
    /// None for an expression.
    pub name: Option<String>,
    pub kind: u32,
    pub modifier: i32,
    /// The index takes two values as equal if and only if their texts are.
    pub exact: bool,
}

/// A unique index or an exclusion constraint of the target's table or of one of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetUnique {
    pub columns: Vec<UniqueColumn>,
    pub nulls_equal: bool,
    pub excludes: bool,
}

/// A unique index, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueValue {
    /// Tells it from others; indexes of partitions that have the same columns are the same.
    pub(crate) index: u64,
    /// Places of the columns that are compared, in the order of their names: a partition can have
    /// them in another order than its root.
    pub(crate) places: Vec<usize>,
    /// Places of columns whose null makes the value equal to none.
    pub(crate) nulls: Vec<usize>,
}

/// Which changes of a table meet others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meets {
    /// Changes of the same rows, and those that give the same values to one of these indexes.
    Values(Vec<UniqueValue>),
    /// All of the table.
    Table,
    /// All of every table.
    Everything,
}

/// How far changes of a table reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    pub oid: u32,
    /// The table, or the root of the partitions that it belongs to.
    pub(crate) root: u32,
    /// What the target's catalog said: the answer to [`FACTS`].
    pub facts: String,
    pub meets: Meets,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            oid: 0,
            root: 0,
            facts: String::new(),
            meets: Meets::Everything,
        }
    }
}

/// OIDs of all that [`Reach`] depends on, as one text for each table of an array of OIDs. An index
/// that is defined in another way is another index.
pub const FACTS: &str = "SELECT pg_catalog.concat_ws('/', \
      coalesce(pg_catalog.pg_partition_root(r.oid), r.oid), \
      (SELECT pg_catalog.string_agg(i.indexrelid::pg_catalog.text, ' ' ORDER BY i.indexrelid) \
        FROM pg_catalog.pg_index AS i WHERE i.indrelid = ANY (tree.oids) AND i.indislive \
          AND (i.indisunique OR i.indisexclusion)), \
      'triggers', \
      (SELECT pg_catalog.string_agg(g.oid::pg_catalog.text, ' ' ORDER BY g.oid) \
        FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid = ANY (tree.oids) \
          AND g.tgenabled IN ('A', 'R'))) \
    FROM pg_catalog.unnest($1::pg_catalog.oid[]) WITH ORDINALITY AS r(oid, place), \
      LATERAL (SELECT ARRAY(SELECT r.oid UNION \
        SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) AS p)) AS tree(oids) \
    ORDER BY r.place";

/// Each column of each index that [`FACTS`] lists, for each table of an array of OIDs. The types are those
/// of which equal values have equal texts: bool, bytea, \"char\", name, the integers, text, oid, varchar,
/// date, time, timestamp, uuid; and with a modifier char and numeric, which are then padded.
pub const UNIQUES: &str = "SELECT tree.root, i.indexrelid, i.indisexclusion, i.indnullsnotdistinct, a.attname, \
      coalesce(a.atttypid, 0), coalesce(a.atttypmod, -1), \
      coalesce(m.amname = 'btree' AND p.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace \
        AND coalesce(l.collisdeterministic, true) \
        AND (a.atttypid IN (16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 1114, 2950) \
          OR a.atttypid IN (1042, 1700) AND a.atttypmod >= 4), false) \
    FROM (SELECT r, r FROM pg_catalog.unnest($1::pg_catalog.oid[]) AS r \
        UNION SELECT r, t.relid FROM pg_catalog.unnest($1::pg_catalog.oid[]) AS r, \
          LATERAL pg_catalog.pg_partition_tree(r) AS t) AS tree(root, oid) \
      JOIN pg_catalog.pg_index AS i ON i.indrelid = tree.oid \
      JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid \
      JOIN pg_catalog.pg_am AS m ON m.oid = c.relam \
      CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) AS k(place) \
      LEFT JOIN pg_catalog.pg_attribute AS a \
        ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place] AND i.indkey[k.place] > 0 \
      LEFT JOIN pg_catalog.pg_opclass AS p ON p.oid = i.indclass[k.place] \
      LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = i.indcollation[k.place] \
    WHERE i.indislive AND (i.indisunique OR i.indisexclusion) \
    ORDER BY tree.root, i.indexrelid, k.place";

impl Reach {
    /// `root` and `triggers` are from the target's catalog, as `uniques`.
    pub fn new(source: &SourceTable, identity: &Identity, target: &TargetReach) -> Self {
        Self {
            oid: target.oid,
            root: target.root,
            facts: target.facts.clone(),
            meets: meets(source, identity, target),
        }
    }
}

/// What the target's catalogs say of a table, for [`Reach::new`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetReach {
    pub oid: u32,
    pub root: u32,
    pub facts: String,
    /// Triggers act on it or on one of its partitions.
    pub triggers: bool,
    pub uniques: Vec<TargetUnique>,
}

fn meets(source: &SourceTable, identity: &Identity, target: &TargetReach) -> Meets {
    if target.triggers {
        return Meets::Everything;
    }
    if *identity == Identity::Whole {
        return Meets::Table;
    }
    let values = target.uniques.iter().map(|unique| value(source, unique));
    match values.collect::<Option<Vec<_>>>() {
        Some(mut values) => {
            values.sort_by_key(|value| value.index);
            values.dedup();
            Meets::Values(values)
        }
        None => Meets::Table,
    }
}

/// None if nothing of the index's values can be compared as text.
fn value(source: &SourceTable, unique: &TargetUnique) -> Option<UniqueValue> {
    if unique.excludes {
        return None;
    }
    let (mut compared, mut nulls) = (Vec::new(), Vec::new());
    for column in &unique.columns {
        let Some(name) = &column.name else {
            continue;
        };
        let Some(place) = source.columns.iter().position(|it| it.name == *name) else {
            continue;
        };
        nulls.push(place);
        let sent = source.columns.get(place);
        // A text of another type, or one that is cut to another length, is not what is compared.
        if column.exact
            && sent.is_some_and(|it| it.kind == column.kind && it.modifier == column.modifier)
        {
            compared.push((name, place));
        }
    }
    compared.sort_unstable();
    nulls.sort_unstable();
    let names: Vec<_> = compared.iter().map(|(name, _)| name).collect();
    (!compared.is_empty()).then(|| UniqueValue {
        index: hash(|it| names.hash(it)),
        places: compared.iter().map(|(_, place)| *place).collect(),
        nulls: match unique.nulls_equal {
            true => Vec::new(),
            false => nulls,
        },
    })
}

/// One for the whole process: hashes of different parts are compared.
static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

pub(crate) fn hash(write: impl FnOnce(&mut <DefaultHashBuilder as BuildHasher>::Hasher)) -> u64 {
    let mut hasher = HASHER.build_hasher();
    write(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::names::TableName;
    use crate::source_table::{KeyColumn, SourceColumn};
    use crate::table::{Table, TargetColumn};
    use lockstep_wire::logical::ReplicaIdentity;

    const TEXT: u32 = 25;

    fn source(columns: &[&str]) -> SourceTable {
        let column = |name: &&str| SourceColumn {
            name: (*name).to_owned(),
            key: false,
            kind: TEXT,
            modifier: -1,
            base: None,
        };
        SourceTable {
            oid: 1,
            name: TableName {
                schema: "s".to_owned(),
                table: "t".to_owned(),
            },
            identity: ReplicaIdentity::Default,
            columns: columns.iter().map(column).collect(),
        }
    }

    pub fn key(place: usize) -> Identity {
        Identity::Key(vec![KeyColumn {
            place,
            operator: None,
        }])
    }

    fn column(name: &str, exact: bool) -> UniqueColumn {
        UniqueColumn {
            name: Some(name.to_owned()),
            kind: TEXT,
            modifier: -1,
            exact,
        }
    }

    /// A unique index of these columns; those whose names end with `?` are not compared by text.
    pub fn unique(columns: &[&str]) -> TargetUnique {
        let columns = columns.iter().map(|name| {
            let name = (*name, name.strip_suffix('?'));
            match name {
                ("", _) => UniqueColumn {
                    name: None,
                    ..column("", false)
                },
                (_, Some(name)) => column(name, false),
                (name, None) => column(name, true),
            }
        });
        TargetUnique {
            columns: columns.collect(),
            nulls_equal: false,
            excludes: false,
        }
    }

    /// A table with columns a, b and c.
    pub fn table(oid: u32, identity: Identity, uniques: &[TargetUnique]) -> Arc<Table> {
        let source = source(&["a", "b", "c"]);
        let target = TargetReach {
            oid,
            root: oid,
            facts: oid.to_string(),
            triggers: false,
            uniques: uniques.to_vec(),
        };
        let column = |name: &str| TargetColumn {
            name: name.to_owned(),
            of: crate::types::ColumnType::default(),
            kind: "pg_catalog.text".to_owned(),
            in_array: true,
            of_user: false,
            delimiter: b',',
            generated: false,
            always_identity: false,
        };
        Arc::new(Table {
            name: source.name.clone(),
            columns: ["a", "b", "c"].map(column).into(),
            reach: Reach::new(&source, &identity, &target),
            identity,
            partitioned: false,
            crowded: false,
            kept: Vec::new(),
            attributes: 0,
        })
    }

    fn meets_of(identity: &Identity, target: &TargetReach) -> Meets {
        meets(&source(&["a", "b", "c"]), identity, target)
    }

    fn with(uniques: &[TargetUnique]) -> TargetReach {
        TargetReach {
            uniques: uniques.to_vec(),
            ..TargetReach::default()
        }
    }

    #[test]
    fn only_columns_that_are_equal_as_texts_are_compared() {
        let places = |uniques: &[TargetUnique]| match meets_of(&key(0), &with(uniques)) {
            Meets::Values(values) => Some(values.into_iter().map(|it| it.places).collect()),
            Meets::Table => None,
            Meets::Everything => panic!("no trigger acts"),
        };
        let none: Vec<Vec<usize>> = Vec::new();
        assert_eq!(places(&[]), Some(none));
        assert_eq!(places(&[unique(&["c", "b"])]), Some(vec![vec![1, 2]]));
        assert_eq!(places(&[unique(&["b", "c?"])]), Some(vec![vec![1]]));
        assert_eq!(places(&[unique(&["b", ""])]), Some(vec![vec![1]]));
        assert_eq!(places(&[unique(&["b", "computed"])]), Some(vec![vec![1]]));
        assert_eq!(places(&[unique(&["b?"])]), None, "citext or the like");
        assert_eq!(places(&[unique(&[""])]), None, "an expression");
        assert_eq!(places(&[unique(&["computed"])]), None, "not sent");
        assert_eq!(places(&[unique(&["a"]), unique(&["b?"])]), None);
        let excludes = TargetUnique {
            excludes: true,
            ..unique(&["b"])
        };
        assert_eq!(places(&[excludes]), None);
        // The same values have other texts, or are cut.
        let mut of_type = unique(&["b"]);
        of_type.columns[0].kind = 23;
        assert_eq!(places(&[of_type]), None);
        let mut cut = unique(&["b"]);
        cut.columns[0].modifier = 7;
        assert_eq!(places(&[cut]), None);
    }

    #[test]
    fn indexes_of_partitions_with_the_same_columns_are_one() {
        let of = [unique(&["b", "c"]), unique(&["c", "b"]), unique(&["b"])];
        let Meets::Values(values) = meets_of(&key(0), &with(&of)) else {
            panic!("all are equal as texts");
        };
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn triggers_reach_everything_and_rows_without_identity_their_table() {
        let acting = TargetReach {
            triggers: true,
            ..with(&[])
        };
        assert_eq!(meets_of(&key(0), &acting), Meets::Everything);
        assert_eq!(meets_of(&Identity::Whole, &with(&[])), Meets::Table);
        let inserts_only = meets_of(&Identity::Nothing, &with(&[]));
        assert_eq!(inserts_only, Meets::Values(Vec::new()));
    }
}
