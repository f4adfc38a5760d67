//! What of a table is replicated: the rows that a filter is true for, and the columns of a list. A
//! table without a [`Subset`] is replicated whole; that of a partitioned table holds for each of its
//! partitions.
//!
//! The publication on the source has both, so pgoutput filters: it sends no other rows and columns,
//! and makes an INSERT of an UPDATE that brings a row into the filter, a DELETE of one that takes it
//! out. The copy and `verify` read them there, as the server has understood them, so all three mean
//! the same.

use std::collections::BTreeMap;

use lockstep_wire::identifiers;

use crate::error::{ReplicaError, Result};
use crate::names::{TableName, quoted};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subset {
    pub table: TableName,
    /// A condition on a row, as the user wrote it.
    pub filter: Option<String>,
    pub columns: Option<Vec<String>>,
}

/// A condition in parentheses. The line break ends a comment that it may end with.
pub fn parenthesised(condition: &str) -> String {
    format!("({condition}\n)")
}

impl Subset {
    /// What follows a table's name in a publication.
    pub fn published(&self) -> String {
        let columns = self.columns.as_ref().map_or_else(String::new, |columns| {
            let columns: Vec<_> = columns.iter().map(|name| quoted(name)).collect();
            format!(" ({})", columns.join(", "))
        });
        let filter = self.filter.as_ref().map_or_else(String::new, |filter| {
            format!(" WHERE {}", parenthesised(filter))
        });
        format!("{columns}{filter}")
    }
}

/// The subsets out of options: `schema.table=EXPRESSION` each, and `schema.table=column,column` each.
pub fn gather(filters: &[String], lists: &[String]) -> Result<Vec<Subset>> {
    let mut subsets: BTreeMap<TableName, Subset> = BTreeMap::new();
    for text in filters {
        let (table, filter) = split("--where", "EXPRESSION", text)?;
        let subset = subsets.entry(table.clone()).or_default();
        if subset.filter.is_some() {
            return Err(twice("--where", &table, "join the conditions with AND"));
        }
        subset.filter = Some(filter.to_owned());
    }
    for text in lists {
        let (table, list) = split("--columns", "COLUMN,...", text)?;
        let subset = subsets.entry(table.clone()).or_default();
        if subset.columns.is_some() {
            return Err(twice("--columns", &table, "put all columns into one list"));
        }
        let (columns, _) = identifiers::parse(list, ',', None).ok_or_else(|| {
            ReplicaError::Usage(format!(
                "--columns: \"{list}\" is no list of columns; write a,b,c, and names with capital \
                 letters or other signs in double quotes"
            ))
        })?;
        subset.columns = Some(columns);
    }
    let named = |(table, subset)| Subset { table, ..subset };
    Ok(subsets.into_iter().map(named).collect())
}

/// A table's name and what follows its `=`.
fn split<'a>(option: &str, what: &str, text: &'a str) -> Result<(TableName, &'a str)> {
    let wrong = || {
        ReplicaError::Usage(format!(
            "{option}: \"{text}\" is not schema.table={what}; names with capital letters or other \
             signs go in double quotes"
        ))
    };
    let (names, rest) = identifiers::parse(text, '.', Some('=')).ok_or_else(wrong)?;
    let [schema, table] = <[String; 2]>::try_from(names).map_err(|_| wrong())?;
    match rest.trim() {
        "" => Err(wrong()),
        rest => Ok((TableName { schema, table }, rest)),
    }
}

fn twice(option: &str, table: &TableName, todo: &str) -> ReplicaError {
    ReplicaError::Usage(format!("{option} is given twice for table {table}; {todo}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn filters_and_lists_of_one_table_are_one_subset() {
        let found = gather(
            &texts(&["public.t = a = 'x=y' -- é", "\"S.1\".\"T=\"\"\"=\"B\" > 0"]),
            &texts(&["Public.T=ID, \"a,B\"", "s.u=x"]),
        );
        let found: Vec<_> = (found.unwrap().into_iter())
            .map(|one| (one.table.sql(), one.filter, one.columns))
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            found,
            [
                ("\"S.1\".\"T=\"\"\"".to_owned(), some("\"B\" > 0"), None),
                (
                    "\"public\".\"t\"".to_owned(),
                    some("a = 'x=y' -- é"),
                    Some(texts(&["id", "a,B"]))
                ),
                ("\"s\".\"u\"".to_owned(), None, Some(texts(&["x"]))),
            ]
        );
        assert_eq!(gather(&[], &[]).unwrap(), []);
    }

    #[test]
    fn a_publication_has_both() {
        let subset = Subset {
            filter: Some("a > 0 -- why".to_owned()),
            columns: Some(texts(&["a", "B\""])),
            ..Subset::default()
        };
        let expected = " (\"a\", \"B\"\"\") WHERE (a > 0 -- why\n)";
        assert_eq!(subset.published(), expected);
        assert_eq!(Subset::default().published(), "");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (filter, list, words) in [
            ("t=a", "", "\"t=a\" is not schema.table=EXPRESSION"),
            ("d.s.t=a", "", "is not schema.table"),
            ("s.t", "", "is not schema.table"),
            ("s.t= ", "", "is not schema.table"),
            ("\"s.t=a", "", "is not schema.table"),
            ("s.t=b", "", "--where is given twice for table \"s.t\""),
            ("s.v=b", "s.v=a,", "\"a,\" is no list of columns"),
            ("s.v=b", "s.t", "\"s.t\" is not schema.table=COLUMN"),
            ("s.v=b", "s.t=a,b", "--columns is given twice"),
        ] {
            let mut lists = vec!["s.t=a"];
            lists.extend(Some(list).filter(|list| !list.is_empty()));
            let error = gather(&texts(&["s.t=a", filter]), &texts(&lists)).unwrap_err();
            assert!(matches!(error, ReplicaError::Usage(_)), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
