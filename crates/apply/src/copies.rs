//! Which table of the target holds the rows of which table of the source. No I/O.
//!
//! A rename is not in the stream: from then on the source describes the table by its new name, and what
//! committed before arrives under the old one, whatever the target's table is called by then. Both sides
//! know a table by its OID, which a rename does not change. A table that was dropped and made again has
//! another OID, and then the name decides.

use std::collections::HashMap;

use crate::names::TableName;

/// A copied table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// What the table was called when it was copied.
    pub name: TableName,
    /// The OID of the target's table; None if an older version has copied it.
    pub target: Option<u32>,
}

/// A table that the target has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub oid: u32,
    pub name: TableName,
}

/// Where the changes of a table of the source go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home<'a> {
    Table(&'a Candidate),
    Missing,
    /// The target's table of that name holds the rows of another table of the source.
    OfAnother,
}

/// The tables of a copy, by their OIDs on the source.
#[derive(Debug, Clone, Default)]
pub struct Copies {
    by_source: HashMap<u32, Copied>,
    /// OIDs on the source by those on the target.
    by_target: HashMap<u32, u32>,
}

impl FromIterator<(u32, Copied)> for Copies {
    fn from_iter<I: IntoIterator<Item = (u32, Copied)>>(copied: I) -> Self {
        let by_source: HashMap<_, _> = copied.into_iter().collect();
        let bound = by_source.iter();
        let by_target = bound.filter_map(|(oid, copied)| Some((copied.target?, *oid)));
        Self {
            by_target: by_target.collect(),
            by_source,
        }
    }
}

impl Copies {
    /// The OID on the source of the table that has this name in the list.
    pub fn source(&self, name: &TableName) -> Option<u32> {
        let mut copied = self.by_source.iter();
        let found = copied.find(|(_, copied)| copied.name == *name);
        found.map(|(oid, _)| *oid)
    }

    /// The copy of the source's table with this OID.
    pub fn of(&self, source: u32) -> Option<&Copied> {
        self.by_source.get(&source)
    }

    /// Chooses where the changes of the source's table go. The candidates are the target's tables with that
    /// name, with the name at the copy, and with the OID at the copy.
    ///
    /// A table that keeps its name is found by that, since the target's may have been replaced by another.
    /// A table that was renamed on the source is the one that was copied, whether the target's has its new
    /// name, still its old one, or one that the source gives it later.
    pub fn home<'a>(&self, source: u32, name: &TableName, candidates: &'a [Candidate]) -> Home<'a> {
        let is_free = |candidate: &&Candidate| {
            let holder = self.by_target.get(&candidate.oid);
            holder.is_none_or(|holder| *holder == source)
        };
        let named = |name: &TableName| candidates.iter().find(|one| one.name == *name);
        let by_name = named(name).filter(is_free);
        let copied = self.of(source);
        let bound = copied.and_then(|copied| {
            let by_oid = candidates.iter().find(|one| Some(one.oid) == copied.target);
            by_oid.or_else(|| named(&copied.name).filter(is_free))
        });
        let was_renamed = copied.is_some_and(|copied| copied.name != *name);
        let home = match was_renamed {
            true => bound.or(by_name),
            false => by_name.or(bound),
        };
        match home {
            Some(home) => Home::Table(home),
            None if named(name).is_some() => Home::OfAnother,
            None => Home::Missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(table: &str) -> TableName {
        TableName {
            schema: "s".to_owned(),
            table: table.to_owned(),
        }
    }

    /// Tables 1 and 2 of the source are `a` and `b`, copied into 11 and 12.
    fn copies() -> Copies {
        let copied = |oid, table, target| {
            let name = name(table);
            (oid, Copied { name, target })
        };
        [
            copied(1, "a", Some(11)),
            copied(2, "b", Some(12)),
            copied(3, "c", None),
        ]
        .into_iter()
        .collect()
    }

    /// The OID of the table into which changes go, 0 if it is missing and -1 if it is another's.
    fn home(source: u32, called: &str, target: &[(u32, &str)]) -> i64 {
        let candidates: Vec<_> = (target.iter())
            .map(|(oid, table)| Candidate {
                oid: *oid,
                name: name(table),
            })
            .collect();
        match copies().home(source, &name(called), &candidates) {
            Home::Table(found) => found.oid.into(),
            Home::Missing => 0,
            Home::OfAnother => -1,
        }
    }

    #[test]
    fn changes_go_where_the_rows_are_whatever_the_names_are() {
        for (source, called, target, expected, what) in [
            (1, "a", &[(11, "a")][..], 11, "as at the copy"),
            (1, "x", &[(11, "x")], 11, "renamed on both sides"),
            (1, "x", &[(11, "a")], 11, "renamed on the source only"),
            (
                1,
                "a",
                &[(11, "x")],
                11,
                "renamed on the target ahead of the stream",
            ),
            (
                1,
                "x",
                &[(11, "y")],
                11,
                "renamed twice, the target at once",
            ),
            (
                1,
                "x",
                &[(11, "a"), (13, "x")],
                11,
                "another one has the new name",
            ),
            (
                1,
                "a",
                &[(11, "old"), (13, "a")],
                13,
                "the target's was replaced",
            ),
            (1, "a", &[(13, "a")], 13, "the target's was made again"),
            (
                1,
                "x",
                &[(13, "a")],
                13,
                "made again there, renamed on the source",
            ),
            (
                1,
                "x",
                &[(13, "x")],
                13,
                "made again there under the new name",
            ),
            (
                1,
                "b",
                &[(11, "a"), (12, "b")],
                11,
                "names changed places on the source",
            ),
            (2, "a", &[(11, "a"), (12, "b")], 12, "and the other one"),
            (
                1,
                "a",
                &[(12, "a"), (11, "b")],
                11,
                "names changed places on the target",
            ),
            (
                3,
                "y",
                &[(14, "c")],
                14,
                "copied by an older version, renamed on the source",
            ),
            (
                3,
                "y",
                &[(14, "y")],
                14,
                "copied by an older version, renamed on both",
            ),
            (9, "n", &[(19, "n")], 19, "not copied"),
            (
                9,
                "a",
                &[(11, "a")],
                -1,
                "another table of the source has its name now",
            ),
            (
                9,
                "a",
                &[(11, "old"), (19, "a")],
                19,
                "and the target has one for it",
            ),
            (1, "x", &[], 0, "gone"),
        ] {
            assert_eq!(home(source, called, target), expected, "{what}");
        }
    }
}
