//! Names of replicas; those of tables are apply's.

use lockstep_client::{ClientError, field};

pub use lockstep_apply::names::{Excluded, TableName, quoted};

use crate::error::{ReplicaError, Result};

/// Longest name of a replica, in bytes: slots and origins are named after it, the longest
/// `lockstep_NAME_05cef18a_again`.
pub const MOST_REPLICA_NAME: usize = 39;

/// Checks a replica's name: slots take the same letters.
pub fn check_replica_name(name: &str) -> Result<()> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.is_empty() && name.len() <= MOST_REPLICA_NAME && name.chars().all(letters) {
        return Ok(());
    }
    Err(ReplicaError::Usage(format!(
        "\"{name}\" is no name for a replica: use 1 to {MOST_REPLICA_NAME} lower-case letters, \
         digits and underscores"
    )))
}

/// Replaces `{namespaces}` in a query by the schemas that may be copied; `n` is pg_namespace.
pub fn with_namespaces(sql: &str) -> String {
    let copied =
        "n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'lockstep')";
    sql.replace("{namespaces}", copied)
}

/// Most objects that [`named`] names.
const MOST_NAMED: usize = 10;

/// Names in words; the last of many are counted.
pub(crate) fn named(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(MOST_NAMED).map(String::as_str).collect();
    let more = match names.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// Tables that a column gives as a JSON array of schemas and names.
pub fn tables_of(row: &[Option<String>], place: usize) -> Result<Vec<TableName>, ClientError> {
    let text: String = field(row, place)?;
    let names: Vec<(String, String)> = serde_json::from_str(&text)
        .map_err(|error| ClientError::Protocol(format!("\"{text}\": {error}")))?;
    let names = (names.into_iter()).map(|(schema, table)| TableName { schema, table });
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_replicas_are_names_of_slots() {
        for (name, good) in [
            ("a", true),
            ("new_york_2", true),
            ("", false),
            ("New", false),
            ("a-b", false),
            ("é", false),
            (&*"x".repeat(39), true),
            (&*"x".repeat(40), false),
        ] {
            assert_eq!(check_replica_name(name).is_ok(), good, "{name}");
        }
    }
}
