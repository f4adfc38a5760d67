//! Where a standby is meant to get its WAL from, by its settings, and where subscriptions are meant to get
//! changes from. Of their connection strings no password or other secret is kept.

use std::collections::BTreeMap;

use lockstep_client::Conninfo;

/// The statement for [`Source`]. A setting that the role may not see is left out.
pub const QUESTION: &str = "SELECT coalesce(json_object_agg(name, setting), '{}') FROM pg_settings \
     WHERE name IN ('primary_conninfo', 'primary_slot_name', 'restore_command')";

/// The statement that says whether the role may read where subscriptions connect to: asking without that
/// right would write an error into the server's log each time.
pub const MAY_READ: &str =
    "SELECT to_json(has_column_privilege('pg_subscription', 'subconninfo', 'SELECT'))";

/// The statement for [`Publisher`] of each subscription of this database.
pub const PUBLISHERS: &str = "SELECT coalesce(json_object_agg(subname, subconninfo), '{}') \
     FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// PostgreSQL's default port.
const PORT: &str = "5432";

/// Host or address, and port, of the server that a connection string names; None if it names several: nobody
/// knows which of them is meant now.
fn address(conninfo: &Conninfo) -> Option<(String, String)> {
    let host = conninfo.get("host").or_else(|| conninfo.get("hostaddr"))?;
    let port = conninfo.get("port").unwrap_or(PORT);
    let is_one = !host.contains(',') && !port.contains(',');
    is_one.then(|| (host.to_owned(), port.to_owned()))
}

/// Where a subscription connects to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publisher {
    pub address: (String, String),
    pub database: Option<String>,
    /// The role that it connects as; None if the string names none.
    pub user: Option<String>,
    /// The name that it connects with, if that is not the subscription's.
    pub application_name: Option<String>,
}

impl Publisher {
    /// None if the string names no host.
    pub fn read(conninfo: &str) -> Option<Self> {
        let parsed = Conninfo::parse(conninfo).ok()?;
        Some(Self {
            address: address(&parsed)?,
            database: parsed.get("dbname").map(str::to_owned),
            user: parsed.get("user").map(str::to_owned),
            application_name: parsed.get("application_name").map(str::to_owned),
        })
    }
}

/// A standby's settings about its upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// `primary_conninfo` names a server; None if the role may not see it.
    pub streams: Option<bool>,
    /// Host or address, and port, of that server.
    pub address: Option<(String, String)>,
    /// `primary_conninfo`, if it holds no password or other secret.
    pub conninfo: Option<Conninfo>,
    /// The role that it connects as; None if `primary_conninfo` names none.
    pub user: Option<String>,
    /// `primary_slot_name`
    pub slot: Option<String>,
    /// `restore_command` is set.
    pub restores: bool,
}

impl Source {
    pub fn read(mut settings: BTreeMap<String, String>) -> Self {
        let conninfo = settings.remove("primary_conninfo");
        let mut set = |name| settings.remove(name).filter(|value| !value.is_empty());
        let parsed = conninfo
            .as_deref()
            .and_then(|text| Conninfo::parse(text).ok());
        let user = parsed.as_ref().and_then(|parsed| parsed.get("user"));
        let user = user.map(str::to_owned);
        let address = parsed.as_ref().and_then(address);
        Self {
            streams: conninfo.map(|text| !text.trim().is_empty()),
            address,
            conninfo: parsed.filter(|parsed| !parsed.has_secret()),
            user,
            slot: set("primary_slot_name"),
            restores: set("restore_command").is_some(),
        }
    }

    /// True if it gets WAL from an archive, and from no server.
    pub fn restores_only(&self) -> bool {
        self.streams == Some(false) && self.restores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_say_where_wal_comes_from() {
        let read = |settings: &[(&str, &str)]| {
            let settings = settings.iter();
            Source::read(
                settings
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            )
        };
        let address = |host: &str, port: &str| Some((host.to_owned(), port.to_owned()));
        assert_eq!(read(&[]), Source::default());
        let archive = read(&[("primary_conninfo", ""), ("restore_command", "cp a b")]);
        assert!(archive.restores_only());
        // Who may not see it does not know.
        assert!(!read(&[("restore_command", "cp a b")]).restores_only());
        let source = read(&[
            ("primary_conninfo", "host=a user=u password=secret"),
            ("primary_slot_name", "s"),
            ("restore_command", ""),
        ]);
        assert_eq!(source.address, address("a", "5432"));
        assert_eq!(
            (
                source.slot.as_deref(),
                source.user.as_deref(),
                source.restores
            ),
            (Some("s"), Some("u"), false)
        );
        assert!(!format!("{source:?}").contains("secret"));
        let publisher = Publisher::read("host=a port=7 dbname=d user=u password=secret").unwrap();
        assert_eq!(publisher.database.as_deref(), Some("d"));
        assert_eq!(Some(publisher.address), address("a", "7"));
        assert_eq!(Publisher::read("dbname=d"), None);
        // Which of several servers it is nobody knows.
        let several = read(&[("primary_conninfo", "host=a,b port=1,2")]);
        assert_eq!((several.streams, several.address), (Some(true), None));
    }
}
