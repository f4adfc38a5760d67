//! Names of relation files.

use std::fmt;

/// OID of the tablespace whose files are in `base`.
const DEFAULT_TABLESPACE: u32 = 1663;
/// OID of the tablespace whose files are in `global`.
const GLOBAL_TABLESPACE: u32 = 1664;

/// A fork of a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fork {
    /// The data.
    Main,
    /// The free space map.
    FreeSpace,
    /// The visibility map.
    Visibility,
    /// The contents to which an unlogged relation is reset.
    Init,
}

impl Fork {
    /// PostgreSQL's name of the fork.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::FreeSpace => "fsm",
            Self::Visibility => "vm",
            Self::Init => "init",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::Main, Self::FreeSpace, Self::Visibility, Self::Init]
            .into_iter()
            .find(|fork| fork.name() == name)
    }
}

impl fmt::Display for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A relation, named by its file number as in WAL records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Relation {
    /// OID of the tablespace.
    pub tablespace: u32,
    /// OID of the database; 0 for a relation that all databases share.
    pub database: u32,
    /// The relation's file number.
    pub number: u32,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tablespace {
            GLOBAL_TABLESPACE => write!(f, "global/{}", self.number),
            DEFAULT_TABLESPACE => write!(f, "base/{}/{}", self.database, self.number),
            other => write!(f, "pg_tblspc/{other}/{}/{}", self.database, self.number),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelationFork {
    pub relation: Relation,
    pub fork: Fork,
}

impl fmt::Display for RelationFork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fork {
            Fork::Main => write!(f, "{}", self.relation),
            fork => write!(f, "{}_{fork}", self.relation),
        }
    }
}

/// A relation's file in the data folder: a segment of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RelationFile {
    pub fork: RelationFork,
    pub segment: u32,
}

impl RelationFile {
    /// Parses a path relative to the data folder. None if it belongs to no relation, or to a
    /// temporary one.
    pub fn at(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            ["global", name] => Self::named(GLOBAL_TABLESPACE, 0, name),
            ["base", database, name] => Self::named(DEFAULT_TABLESPACE, number(database)?, name),
            ["pg_tblspc", tablespace, _, database, name] => {
                Self::named(number(tablespace)?, number(database)?, name)
            }
            _ => None,
        }
    }

    /// Parses a file's name, `NUMBER[_FORK][.SEGMENT]`.
    fn named(tablespace: u32, database: u32, name: &str) -> Option<Self> {
        let (name, segment) = match name.split_once('.') {
            Some((name, segment)) => (name, number(segment)?),
            None => (name, 0),
        };
        let (name, fork) = match name.split_once('_') {
            Some((_, "main")) => return None,
            Some((name, fork)) => (name, Fork::named(fork)?),
            None => (name, Fork::Main),
        };
        let relation = Relation {
            tablespace,
            database,
            number: number(name)?,
        };
        Some(Self {
            fork: RelationFork { relation, fork },
            segment,
        })
    }
}

/// Parses a number that consists of digits only, without sign or blank.
fn number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_paths() {
        for (path, name, fork, segment) in [
            ("base/5/16384", "base/5/16384", Fork::Main, 0),
            ("base/5/16384.2", "base/5/16384", Fork::Main, 2),
            ("base/5/16384_fsm", "base/5/16384_fsm", Fork::FreeSpace, 0),
            ("base/5/16384_vm.1", "base/5/16384_vm", Fork::Visibility, 1),
            ("global/1262_init", "global/1262_init", Fork::Init, 0),
            (
                "pg_tblspc/20000/PG_15_202209061/5/16390",
                "pg_tblspc/20000/5/16390",
                Fork::Main,
                0,
            ),
        ] {
            let file = RelationFile::at(path).unwrap();
            assert_eq!(file.fork.to_string(), name);
            assert_eq!((file.fork.fork, file.segment), (fork, segment));
        }
    }

    #[test]
    fn everything_else_is_none() {
        for path in [
            "base/5/t3_16384",
            "base/5/PG_VERSION",
            "base/5/pg_filenode.map",
            "base/5/pg_internal.init",
            "base/5/pg_internal.init.123",
            "base/5/16384_main",
            "base/5/16384_other",
            "base/5/16384.x",
            "base/5/+16384",
            "base/5/",
            "base/5/99999999999",
            "base/pgsql_tmp/1",
            "pg_wal/1",
            "",
        ] {
            assert_eq!(RelationFile::at(path), None, "{path}");
        }
    }
}
