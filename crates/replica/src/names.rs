//! Names of replicas; those of tables are apply's.

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
