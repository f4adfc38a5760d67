//! Where to connect, as libpq understands it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::libpq::{self, Setting};
use crate::{CONNECT_TIMEOUT_S, ClientError, Result};

/// A value of `hostaddr` that is no address, so that libpq connects to nothing; also a password
/// that nobody gets.
const NOWHERE: &str = "-";

/// A password file that is not there. An empty name would mean the default.
const NO_FILE: &str = "/nonexistent/.pgpass";

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Queries.
    Sql,
    /// Logical replication (`replication=database`), and queries.
    Replication,
}

/// What a program needs to connect to the same server without libpq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The host in use if the conninfo names several; the socket's folder if it begins with `/`.
    pub host: String,
    /// The address in use; None for a Unix socket.
    pub hostaddr: Option<String>,
    /// The port, also in the socket's name.
    pub port: u16,
    pub database: String,
    pub user: String,
    /// True if this connection is encrypted.
    pub tls: bool,
    /// When to use TLS, `prefer` by default.
    pub sslmode: String,
    /// The file with the certificate authorities to trust, or `system`.
    pub sslrootcert: Option<String>,
    /// The file that lists revoked certificates.
    pub sslcrl: Option<String>,
    /// The file with the client's certificate.
    pub sslcert: Option<String>,
    /// The file with the client's key.
    pub sslkey: Option<String>,
    /// Send the host's name when TLS begins.
    pub sslsni: bool,
    /// The lowest version of TLS to accept, e.g. `TLSv1.2`.
    pub ssl_min_protocol_version: Option<String>,
}

/// What a user said about a connection: a URI or `keyword=value` pairs. Options that it leaves
/// out come from the service file, the `PG*` variables and libpq's defaults, as in every
/// program that uses libpq.
///
/// Neither `Debug` nor `Display` shows passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct Conninfo {
    /// All options that libpq knows, including those without a value.
    settings: Vec<Setting>,
}

impl Conninfo {
    /// Parses a conninfo. An empty one leaves everything to variables and defaults.
    pub fn parse(text: &str) -> Result<Self> {
        let string = CString::new(text)
            .map_err(|_| ClientError::Conninfo("it holds a NUL character".to_owned()))?;
        match libpq::parse(&string) {
            Ok(settings) => Ok(Self { settings }),
            Err(words) => Err(ClientError::Conninfo(without_quotes(text, &words))),
        }
    }

    /// The value that the conninfo itself gives an option.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.settings
            .iter()
            .find(|setting| setting.name == option)
            .and_then(|setting| setting.value.as_deref())
    }

    /// True if the conninfo holds a password or another secret.
    pub fn has_secret(&self) -> bool {
        self.settings.iter().any(|setting| {
            let said = setting
                .value
                .as_ref()
                .is_some_and(|value| !value.is_empty());
            setting.secret && said
        })
    }

    /// The value of an option that a connection would use, with variables, the service file and
    /// defaults, but of passwords only one that the conninfo itself gives. It reads the
    /// environment, which no other thread may change meanwhile.
    pub fn effective(&self, option: &str) -> Option<String> {
        value_of(&self.resolve(), option)
            .or_else(|| self.get(option))
            .map(str::to_owned)
    }

    fn resolve(&self) -> Vec<Setting> {
        let mut parameters = self.explicit();
        // With a password libpq looks into no password file, and does not warn of one.
        let ours = ["hostaddr", "password"];
        parameters.retain(|(name, _)| ours.iter().all(|ours| name.as_bytes() != ours.as_bytes()));
        for name in ours {
            push(&mut parameters, name, NOWHERE);
        }
        let mut settings = libpq::resolve(&parameters).unwrap_or_default();
        settings.retain(|setting| !ours.contains(&setting.name.as_str()));
        settings
    }

    /// This conninfo with another value of one option. An error if libpq does not know the
    /// option or the value holds a NUL.
    pub fn with(mut self, option: &str, value: &str) -> Result<Self> {
        if value.contains('\0') {
            return Err(ClientError::Conninfo(format!(
                "the value of {option} holds a NUL character"
            )));
        }
        let setting = self
            .settings
            .iter_mut()
            .find(|setting| setting.name == option)
            .ok_or_else(|| ClientError::Conninfo(format!("libpq knows no option {option}")))?;
        setting.value = Some(value.to_owned());
        Ok(self)
    }

    /// This conninfo without a value for one option.
    pub fn without(mut self, option: &str) -> Self {
        for setting in &mut self.settings {
            if setting.name == option {
                setting.value = None;
            }
        }
        self
    }

    /// This conninfo without passwords and other secrets, for what others may read.
    pub fn without_secrets(mut self) -> Self {
        for setting in &mut self.settings {
            if setting.secret {
                setting.value = None;
            }
        }
        self
    }

    /// This conninfo with another database.
    pub fn with_database(self, database: &str) -> Result<Self> {
        self.with("dbname", database)
    }

    /// This conninfo with one server in place of all that it names.
    pub fn at(self, server: &Server) -> Result<Self> {
        self.with("host", &server.host)?
            .with("hostaddr", server.hostaddr.as_deref().unwrap_or_default())?
            .with("port", &server.port.to_string())
    }

    fn explicit(&self) -> Vec<(CString, CString)> {
        let mut parameters = Vec::new();
        for setting in &self.settings {
            if let Some(value) = &setting.value {
                push(&mut parameters, &setting.name, value);
            }
        }
        parameters
    }

    /// The parameters with which libpq connects.
    pub(crate) fn parameters(
        &self,
        purpose: Purpose,
        application_name: &str,
    ) -> Vec<(CString, CString)> {
        let mut parameters = self.explicit();
        let ours = ["replication", "fallback_application_name"];
        parameters.retain(|(name, _)| ours.iter().all(|ours| name.as_bytes() != ours.as_bytes()));
        push(
            &mut parameters,
            "fallback_application_name",
            application_name,
        );
        if purpose == Purpose::Replication {
            push(&mut parameters, "replication", "database");
        }
        let effective = self.resolve();
        if passfile(&effective).is_some_and(was_refused) {
            parameters.retain(|(name, _)| name.as_bytes() != b"passfile");
            push(&mut parameters, "passfile", NO_FILE);
        }
        for (option, value) in [
            ("connect_timeout", CONNECT_TIMEOUT_S.to_string().as_str()),
            // Answers are read as UTF-8 only.
            ("client_encoding", "UTF8"),
        ] {
            if value_of(&effective, option).is_none() {
                push(&mut parameters, option, value);
            }
        }
        parameters
    }
}

/// The password file that libpq would look into.
fn passfile(effective: &[Setting]) -> Option<PathBuf> {
    match value_of(effective, "passfile") {
        Some(file) => Some(file.into()),
        None => Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass")),
    }
}

/// Password files that libpq has refused in this program.
static REFUSED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Whether libpq has already warned about this password file, which others may read or which is
/// no file, and so does not use. It writes its warning to standard error for each connection; one
/// of them says it all.
fn was_refused(file: PathBuf) -> bool {
    let refused = std::fs::metadata(&file)
        .is_ok_and(|about| !about.is_file() || about.permissions().mode() & 0o077 != 0);
    let mut files = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    refused && !files.insert(file)
}

/// Adds a parameter. None can hold a NUL: neither libpq nor [`Conninfo::with`] accepts one.
fn push(parameters: &mut Vec<(CString, CString)>, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) {
        parameters.push((name, value));
    }
}

fn value_of<'a>(settings: &'a [Setting], option: &str) -> Option<&'a str> {
    settings
        .iter()
        .find(|setting| setting.name == option)
        .and_then(|setting| setting.value.as_deref())
        .filter(|value| !value.is_empty())
}

/// libpq's error about a conninfo, without what it quotes of the conninfo: that may be a
/// password or a part of one. The quotes stay if the conninfo cannot hold a password.
fn without_quotes(conninfo: &str, words: &str) -> String {
    let harmless = !conninfo.contains('@')
        && !["pass", "secret", "scram"]
            .iter()
            .any(|word| conninfo.contains(word));
    match (harmless, words.find('"'), words.rfind('"')) {
        (false, Some(first), Some(last)) => {
            let before = words.get(..first).unwrap_or_default();
            let after = words.get(last..).unwrap_or_default();
            format!("{before}\"...{after}")
        }
        _ => words.to_owned(),
    }
}

impl fmt::Display for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for setting in &self.settings {
            let Some(value) = &setting.value else {
                continue;
            };
            let value = if setting.secret { "****" } else { value };
            let plain = !value.is_empty()
                && !value.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\');
            match plain {
                true => write!(f, "{space}{}={value}", setting.name)?,
                false => {
                    let escaped = value.replace('\\', "\\\\").replace('\'', "\\'");
                    write!(f, "{space}{}='{escaped}'", setting.name)?;
                }
            }
            space = " ";
        }
        Ok(())
    }
}

impl fmt::Debug for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conninfo({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_uris_are_understood() {
        for (text, option, value) in [
            ("host=a port=1", "host", Some("a")),
            ("host=a port=1", "user", None),
            ("host = 'a b\\'c'", "host", Some("a b'c")),
            ("host=a host=b", "host", Some("b")),
            (
                "postgresql://u%40x:p@h:1,i:2/d?sslmode=require",
                "host",
                Some("h,i"),
            ),
            ("postgresql://u%40x:p@h:1/d", "user", Some("u@x")),
            ("postgres:///d?ssl=true", "sslmode", Some("require")),
            ("", "host", None),
        ] {
            let conninfo = Conninfo::parse(text).unwrap();
            assert_eq!(conninfo.get(option), value, "{text}");
        }
    }

    #[test]
    fn errors_do_not_tell_passwords() {
        for text in [
            "host=a password=correct horse",
            "password='correct",
            "horse=battery password=correct",
            "postgresql://u:correct@[horse",
            "postgresql://u:correct@h:1/d?horse",
            "postgresql://u:correct%zz@h",
            "host=a passfile=x horse",
            "host=a scram_client_key=correct horse",
        ] {
            let error = Conninfo::parse(text).unwrap_err().to_string();
            for secret in ["correct", "horse", "battery"] {
                assert!(!error.contains(secret), "{text}: {error}");
            }
        }
        let error = Conninfo::parse("hots=a").unwrap_err().to_string();
        assert!(error.contains("\"hots\""), "{error}");
        assert!(Conninfo::parse("host=a\0").is_err());
    }

    #[test]
    fn passwords_are_not_shown() {
        let text = "host='a b' password=correct sslpassword=horse application_name='it\\'s'";
        let conninfo = Conninfo::parse(text).unwrap();
        let shown = format!("{conninfo:?} {conninfo}");
        assert!(
            !shown.contains("correct") && !shown.contains("horse"),
            "{shown}"
        );
        assert!(conninfo.has_secret());
        let without = Conninfo::parse("host=a password='' passfile=x").unwrap();
        assert!(!without.has_secret());
        assert!(shown.contains("host='a b'"), "{shown}");
        assert!(shown.contains("application_name='it\\'s'"), "{shown}");
    }

    #[test]
    fn options_are_replaced() {
        let conninfo = Conninfo::parse("dbname=a").unwrap();
        let conninfo = conninfo.with_database("b c=d").unwrap();
        assert_eq!(conninfo.get("dbname"), Some("b c=d"));
        let again = Conninfo::parse(&conninfo.to_string()).unwrap();
        assert_eq!(again, conninfo);
        assert!(conninfo.clone().with("nothing", "x").is_err());
        assert!(conninfo.with("host", "a\0").is_err());
    }

    #[test]
    fn defaults_are_known() {
        let conninfo = Conninfo::parse("host=a,b port=1 hostaddr=127.0.0.1,127.0.0.2").unwrap();
        assert_eq!(conninfo.effective("host").as_deref(), Some("a,b"));
        assert_eq!(
            conninfo.effective("hostaddr").as_deref(),
            Some("127.0.0.1,127.0.0.2")
        );
        let conninfo = Conninfo::parse("host=a sslmode=verify-full").unwrap();
        assert_eq!(
            conninfo.effective("sslmode").as_deref(),
            Some("verify-full")
        );
        let plain = Conninfo::parse("").unwrap();
        assert!(plain.effective("sslmode").is_some());
    }

    fn parameter(conninfo: &str, purpose: Purpose, option: &str) -> Vec<String> {
        Conninfo::parse(conninfo)
            .unwrap()
            .parameters(purpose, "us")
            .iter()
            .filter(|(name, _)| name.to_str() == Ok(option))
            .map(|(_, value)| value.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn our_own_options_are_added_once() {
        for (conninfo, purpose, option, expected) in [
            (
                "replication=true",
                Purpose::Replication,
                "replication",
                &["database"][..],
            ),
            ("replication=true", Purpose::Sql, "replication", &[]),
            (
                "fallback_application_name=x",
                Purpose::Sql,
                "fallback_application_name",
                &["us"],
            ),
            (
                "application_name=x",
                Purpose::Sql,
                "application_name",
                &["x"],
            ),
            ("", Purpose::Sql, "connect_timeout", &["10"]),
            ("connect_timeout=0", Purpose::Sql, "connect_timeout", &["0"]),
            ("", Purpose::Sql, "client_encoding", &["UTF8"]),
            (
                "client_encoding=LATIN1",
                Purpose::Sql,
                "client_encoding",
                &["LATIN1"],
            ),
        ] {
            assert_eq!(
                parameter(conninfo, purpose, option),
                expected,
                "{conninfo:?} {option}"
            );
        }
    }
}
