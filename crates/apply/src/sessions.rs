//! Our sessions of a server, and those of others in words for those who wait for them.

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};

/// Settings of every session, whatever the role's and the database's are: names, values and catalogs
/// read the same, and no time runs out for a session that idles, waits or works long. It may write where
/// others shall only read. To compile a query of the catalogs takes longer than to run it.
const SETTINGS: &str = "SET statement_timeout = 0; SET jit = off; \
    SET default_transaction_read_only = off; \
    SELECT pg_catalog.set_config('search_path', '', false); SET client_min_messages = error; \
    SET quote_all_identifiers = off; SET standard_conforming_strings = on; SET array_nulls = on; \
    SET transform_null_equals = off; SET xmloption = content; \
    SET default_transaction_isolation = 'read committed'; \
    SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0";

/// The first version that ends transactions which last long, unless that is set to zero.
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;

/// Keeps event triggers of users from firing for the statements of this session, as far as its role may: one
/// that logs DDL would write rows, one that forbids DDL would end what we do. `event_triggers` is there from
/// 17 on and stops those, too, that are `ENABLE ALWAYS`. Triggers of tables and foreign keys do not act
/// either.
pub const SILENT: &str = "SELECT pg_catalog.set_config(s.name, CASE s.name WHEN 'event_triggers' THEN 'off' \
      ELSE 'replica' END, false) \
    FROM pg_catalog.pg_settings AS s WHERE s.name IN ('event_triggers', 'session_replication_role') \
      AND pg_catalog.has_parameter_privilege(s.name, 'SET')";

const SESSIONS: &str = "
SELECT p.pid, a.usename, a.application_name, date_trunc('second', a.backend_start),
    date_trunc('second', a.xact_start)
FROM (SELECT json_array_elements_text($1::json)::int AS pid) p
    LEFT JOIN pg_stat_activity a ON a.pid = p.pid
ORDER BY 1";

/// Connects, with the settings of every session.
pub fn open(
    conninfo: &Conninfo,
    purpose: Purpose,
    application_name: &str,
) -> Result<Connection, ClientError> {
    let mut session = Connection::connect(conninfo, purpose, application_name)?;
    let more = match session.server_version() >= TRANSACTION_TIMEOUT_SINCE {
        true => "; SET transaction_timeout = 0",
        false => "",
    };
    session.execute(&format!("{SETTINGS}{more}"))?;
    Ok(session)
}

/// Most sessions that are named.
const MOST: usize = 5;

/// Who these sessions are. Process 0 is a prepared transaction, as `pg_blocking_pids` has it. A role that
/// may not see when others began is not told.
pub fn words(connection: &mut Connection, pids: &[u32]) -> Result<String, ClientError> {
    let asked = serde_json::json!(pids).to_string();
    let mut named = Vec::new();
    for row in connection.query_with(SESSIONS, &[&asked])? {
        let pid: u32 = field(&row, 0)?;
        let text = |place| field::<Option<String>>(&row, place);
        let facts = [
            text(1)?.map(|role| format!("role \"{role}\"")),
            text(2)?.map(|name| format!("application \"{name}\"")),
            text(3)?.map(|since| format!("connected since {since}")),
            text(4)?.map(|since| format!("in a transaction since {since}")),
        ];
        let facts: Vec<_> = facts.into_iter().flatten().collect();
        named.push(match (pid, facts.is_empty()) {
            (0, _) => "a prepared transaction (see pg_prepared_xacts)".to_owned(),
            (_, true) => format!("process {pid}"),
            (_, false) => format!("process {pid} ({})", facts.join(", ")),
        });
    }
    let more = named.len().saturating_sub(MOST);
    named.truncate(MOST);
    let named = named.join(", ");
    Ok(match more {
        0 => named,
        more => format!("{named} and {more} more"),
    })
}
