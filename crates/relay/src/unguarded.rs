//! Rules of the primary that let the relay's clients in without a password.
//!
//! To the primary all clients have the relay's address, so a rule that trusts this address, or
//! asks the operating system who the relay is, trusts whoever reaches the relay.

use lockstep_client::{ClientError, Connection};

/// Lines of `pg_hba.conf` that may hold for this connection's address and want no password.
/// Whether an earlier line refuses the login first is not looked at.
const RULES: &str = "\
    SELECT 'line ' || line_number || ' (' || auth_method || ' for ' || \
           pg_catalog.array_to_string(user_name, ', ') || ')' \
    FROM pg_catalog.pg_hba_file_rules \
    WHERE auth_method IN ('trust', 'peer', 'ident') \
      AND CASE WHEN pg_catalog.inet_client_addr() IS NULL THEN type = 'local' \
               WHEN type = 'local' THEN false \
               WHEN address IN ('all', 'samehost', 'samenet') THEN true \
               WHEN netmask IS NULL THEN false \
               WHEN address !~ '^[0-9a-fA-F.:]+$' THEN false \
               WHEN pg_catalog.family(address::inet) <> \
                    pg_catalog.family(pg_catalog.inet_client_addr()) THEN false \
               ELSE (address::inet & netmask::inet) = \
                    (pg_catalog.inet_client_addr() & netmask::inet) END \
    ORDER BY line_number";

/// What the primary says when a role may not do something.
const NOT_ALLOWED: &str = "42501";

/// These rules, in words; None if the relay's role may not read them.
pub fn rules(upstream: &mut Connection) -> Result<Option<Vec<String>>, ClientError> {
    match upstream.query(RULES) {
        Ok(rows) => Ok(Some(rows.into_iter().flatten().flatten().collect())),
        Err(ClientError::Refused(refusal)) if refusal.sqlstate == NOT_ALLOWED => Ok(None),
        Err(error) => Err(error),
    }
}
