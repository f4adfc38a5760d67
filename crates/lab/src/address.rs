//! Where a private server is, and the roles and the database that every one has.

use std::path::PathBuf;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose};

/// The superuser of every private server.
pub const SUPERUSER: &str = "postgres";

/// The database of the load and of the measurements.
pub const DATABASE: &str = "postgres";

/// How long a server may take to start, stop, promote or catch up, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The role that readers and writers log in as. It is neither a superuser nor a replication
/// role nor a member of pg_monitor, since Lockstep exempts those.
pub const APP_ROLE: &str = "app";

/// How long a statement may take: filling a large database takes hours on a slow machine.
const STATEMENT_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Parameters that libpq would otherwise take from its variables in the environment, which are
/// not meant for private servers. Programs that start servers leave those variables as well,
/// since not all of them can be overruled.
const ALONE: &str = "options='' channel_binding=disable target_session_attrs=any";

/// Where a server listens, and as whom to connect: for threads that may have to reconnect.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    /// The folder of the server's socket.
    pub sockets: PathBuf,
    /// The number in the socket's name.
    pub port: u16,
    pub database: String,
    pub user: String,
    /// `application_name` of the session.
    pub application: String,
}

impl ServerAddress {
    /// This address with another database.
    pub fn database(mut self, name: &str) -> Self {
        name.clone_into(&mut self.database);
        self
    }

    pub fn connect(&self) -> Result<Connection, ClientError> {
        let conninfo = Conninfo::parse(ALONE)?
            .with("host", &self.sockets.to_string_lossy())?
            .with("port", &self.port.to_string())?
            .with("dbname", &self.database)?
            .with("user", &self.user)?
            .with("application_name", &self.application)?
            .with("connect_timeout", &PATIENCE.as_secs().to_string())?;
        let mut connection = Connection::connect(&conninfo, Purpose::Sql, &self.application)?;
        connection.set_patience(STATEMENT_PATIENCE);
        Ok(connection)
    }
}
