//! Where the primary is: found through libpq, which knows the conninfo's several hosts,
//! and remembered for sessions that are passed through.
//!
//! A server that refuses a connection (too many of them, a role that may not, a start that is
//! under way) is still there: its address is kept, and sessions that are passed through get
//! its own error. It is forgotten once no server answers there, or it says that it is a
//! standby where the conninfo asks for a primary.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, Server};

use crate::lock::lock;
use crate::synchronous::APPLICATION_NAME;

/// Shortest pause between the end of a look that did not find the primary and the next look.
const LOOK_PACE: Duration = Duration::from_millis(200);

/// What libpq says of a server that is no primary although the conninfo asks for one.
const NO_PRIMARY: [&str; 2] = ["session is read-only", "server is in hot standby mode"];

/// What subscribers set, so that values do not depend on the server's settings. A stream is
/// shared only with sessions that have the same; see [`crate::output_settings`] for the others.
const AS_SUBSCRIBERS: &str = "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3";

#[derive(Debug)]
pub struct Primary {
    conninfo: Conninfo,
    /// Used where a connection names no database.
    database: String,
    /// `logical_decoding_work_mem` of streams, at least; kB, 0 for the server's own.
    work_mem_kb: u64,
    server: Mutex<Option<Server>>,
    /// Held while it is looked for: when the last look that failed has ended.
    looking: Mutex<Option<Instant>>,
}

impl Primary {
    /// The primary of a conninfo. `work_mem` is the least `logical_decoding_work_mem` of
    /// streams, in bytes.
    pub fn new(conninfo: Conninfo, database: String, work_mem: u64) -> Self {
        Self {
            conninfo,
            database,
            work_mem_kb: work_mem / 1024,
            server: Mutex::new(None),
            looking: Mutex::new(None),
        }
    }

    /// A new connection to a database, for SQL and replication commands.
    pub fn connect(&self, database: &str) -> Result<Connection, ClientError> {
        let conninfo = self.conninfo.clone().with_database(database)?;
        self.open(conninfo, Purpose::Replication)
    }

    /// A new connection to a database that takes no walsender, for SQL only.
    pub fn connect_for_sql(&self, database: &str) -> Result<Connection, ClientError> {
        let conninfo = self.conninfo.clone().with_database(database)?;
        self.open(conninfo, Purpose::Sql)
    }

    /// A new connection for a stream. The primary knows the stream by its `application_name`; one
    /// that is given here goes before the operator's for all connections, which may come from the
    /// environment too.
    pub fn connect_to_stream(
        &self,
        database: &str,
        encoding: &str,
        application_name: Option<&str>,
    ) -> Result<Connection, ClientError> {
        let mut conninfo = self.conninfo.clone().with_database(database)?;
        if let Some(name) = application_name {
            conninfo = conninfo.with("application_name", name)?;
        }
        let options = match conninfo.get("options") {
            Some(given) => format!("{given} {AS_SUBSCRIBERS}"),
            None => AS_SUBSCRIBERS.to_owned(),
        };
        let conninfo = conninfo.with("options", &options)?;
        let conninfo = conninfo.with("client_encoding", encoding)?;
        let mut upstream = self.open(conninfo, Purpose::Replication)?;
        let kb = self.work_mem_kb;
        if kb > 0 {
            // A server that is given more keeps it.
            upstream.query(&format!(
                "SELECT pg_catalog.set_config(name, '{kb}', false) FROM pg_catalog.pg_settings \
                 WHERE name = 'logical_decoding_work_mem' AND setting::bigint < {kb}"
            ))?;
        }
        Ok(upstream)
    }

    fn open(&self, conninfo: Conninfo, purpose: Purpose) -> Result<Connection, ClientError> {
        let mut upstream = Connection::connect(&conninfo, purpose, APPLICATION_NAME)
            .inspect_err(|error| self.forget_if_gone(error))?;
        *lock(&self.server) = Some(upstream.server()?);
        // A role or a database may have one in which somebody else can make operators.
        upstream.query("SELECT pg_catalog.set_config('search_path', '', false)")?;
        Ok(upstream)
    }

    /// Finds out where the primary is, whether that is known or not; a connection to it for
    /// SQL. Without a walsender, which others may need. Blocks as connecting does; there is one
    /// look at a time.
    pub fn look(&self) -> Result<Connection, ClientError> {
        self.look_now(&mut lock(&self.looking))
    }

    /// Where the primary is; looks for it if that is not known. Those who ask while somebody
    /// looks get what that one finds. The error is for users.
    pub fn find(&self) -> Result<Server, String> {
        let mut failed = lock(&self.looking);
        if let Some(known) = self.known() {
            return Ok(known);
        }
        if let Some(at) = *failed {
            std::thread::sleep(LOOK_PACE.saturating_sub(at.elapsed()));
        }
        self.look_now(&mut failed)
            .map_err(|error| error.to_string())?;
        self.known()
            .ok_or_else(|| "it was found, and lost again".to_owned())
    }

    fn look_now(&self, failed: &mut Option<Instant>) -> Result<Connection, ClientError> {
        let looked = self
            .conninfo
            .clone()
            .with_database(&self.database)
            .and_then(|conninfo| Connection::connect(&conninfo, Purpose::Sql, APPLICATION_NAME));
        let found = looked.and_then(|upstream| Ok((upstream.server()?, upstream)));
        *failed = found.is_err().then(Instant::now);
        let (server, upstream) = found.inspect_err(|error| self.forget_if_gone(error))?;
        *lock(&self.server) = Some(server);
        Ok(upstream)
    }

    /// Where the primary is, as last connected to; None while that is not known.
    pub fn known(&self) -> Option<Server> {
        lock(&self.server).clone()
    }

    /// The primary's host and port, as last connected to.
    pub fn name(&self) -> String {
        lock(&self.server)
            .as_ref()
            .map_or_else(String::new, |server| {
                format!("{}:{}", server.host, server.port)
            })
    }

    /// Nobody answers at this address: look for the primary before it is used again.
    pub fn forget(&self, gone: &Server) {
        lock(&self.server).take_if(|known| known == gone);
    }

    /// Forgets where the primary is if this error of a connection means that it is not there.
    fn forget_if_gone(&self, error: &ClientError) {
        let (ClientError::Connect(words), Some(known)) = (error, self.known()) else {
            return;
        };
        let answers = || {
            let there = self.conninfo.clone().at(&known);
            there.is_ok_and(|there| Connection::answers(&there))
        };
        if says_no_primary(words, &known) || !answers() {
            self.forget(&known);
        }
    }
}

/// Whether libpq's words about all servers that it tried say of this one that it is no primary.
fn says_no_primary(words: &str, server: &Server) -> bool {
    let place = match server.host.starts_with('/') {
        true => format!("on socket \"{}/.s.PGSQL.{}\"", server.host, server.port),
        false => format!("at \"{}\"", server.host),
    };
    let port = format!("port {} failed", server.port);
    words.split("connection to server ").any(|said| {
        said.starts_with(&place)
            && (server.host.starts_with('/') || said.contains(&port))
            && NO_PRIMARY.iter().any(|no| said.contains(no))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str, port: u16) -> Server {
        Server {
            host: host.to_owned(),
            hostaddr: None,
            port,
            database: "postgres".to_owned(),
            user: "relay".to_owned(),
            tls: false,
            sslmode: "prefer".to_owned(),
            sslrootcert: None,
            sslcrl: None,
            sslcert: None,
            sslkey: None,
            sslsni: true,
            ssl_min_protocol_version: None,
        }
    }

    #[test]
    fn what_libpq_says_of_another_server_counts_for_that_one() {
        let words = "connection to server at \"a\" (10.0.0.1), port 5432 failed: FATAL: sorry, too \
             many clients already connection to server at \"b\" (10.0.0.2), port 5432 failed: \
             session is read-only connection to server on socket \"/s/.s.PGSQL.5433\" failed: \
             server is in hot standby mode";
        for (host, port, expected) in [
            ("a", 5432, false),
            ("b", 5432, true),
            ("b", 5433, false),
            ("/s", 5433, true),
            ("/s", 5432, false),
        ] {
            let said = says_no_primary(words, &server(host, port));
            assert_eq!(said, expected, "{host} {port}");
        }
    }

    #[test]
    fn an_address_is_forgotten_only_where_nobody_answers() {
        // A port that was free a moment ago: nobody listens there.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let conninfo = Conninfo::parse(&format!("host=127.0.0.1 port={port}")).unwrap();
        let primary = Primary::new(conninfo, "postgres".to_owned(), 0);
        let there = server("127.0.0.1", port);
        *lock(&primary.server) = Some(there.clone());
        let refused = ClientError::Lost("the server ended the session".to_owned());
        primary.forget_if_gone(&refused);
        assert_eq!(primary.known(), Some(there.clone()));
        primary.forget(&server("elsewhere", port));
        assert_eq!(primary.known(), Some(there));
        assert!(primary.look().is_err());
        assert_eq!(primary.known(), None);
        assert!(primary.find().unwrap_err().contains("refused"));
    }
}
