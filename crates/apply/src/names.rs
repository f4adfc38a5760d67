//! Names of tables, and which of them are left out.

use std::fmt;

/// A table's schema and name, unquoted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    pub schema: String,
    pub table: String,
}

/// A name, quoted for SQL. Names come from a server, so they are never too long or empty.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl TableName {
    /// Quoted for SQL.
    pub fn sql(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}.{}\"", self.schema, self.table)
    }
}

/// Schemas and tables that are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excluded {
    pub schemas: Vec<String>,
    /// The name as `schema.table`.
    pub tables: Vec<String>,
}

impl Excluded {
    /// Whether a table is left out by its own name.
    pub fn names(&self, name: &TableName) -> bool {
        self.schemas.contains(&name.schema)
            || self
                .tables
                .iter()
                .any(|excluded| *excluded == format!("{}.{}", name.schema, name.table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_quoted() {
        let name = TableName {
            schema: "a\"b".to_owned(),
            table: "C d".to_owned(),
        };
        assert_eq!(name.sql(), "\"a\"\"b\".\"C d\"");
        assert_eq!(name.to_string(), "\"a\"b.C d\"");
    }
}
