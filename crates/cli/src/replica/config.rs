//! The file of `lockstep replica run --config`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lockstep_apply::MEMORY;
use lockstep_client::Conninfo;
use lockstep_replica::lifecycle::follow::Following;
use lockstep_replica::names::check_replica_name;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::logging::{LogFormat, LogLevel};
use lockstep_service::sanitize::sanitize;
use lockstep_service::secret::read_secret;
use lockstep_service::toml_file;
use serde::Deserialize;

use super::run::{memory, spool, spool_limit, writers};

/// Most replicas of a file: each has some connections, and memory of its own.
const MOST_REPLICAS: usize = 100;

/// All that is configured.
#[derive(Debug, Clone)]
pub struct Config {
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    /// Where metrics are served, if at all.
    pub metrics: Option<HostPort>,
    pub replicas: Vec<Following>,
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    log_format: Option<String>,
    log_level: Option<String>,
    metrics: Option<String>,
    #[serde(default)]
    replica: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: String,
    target: String,
    source: Option<String>,
    memory: Option<String>,
    writers: Option<WrittenWriters>,
    spool_dir: Option<PathBuf>,
    spool_limit: Option<String>,
}

/// `writers` as it is written: 4 or "auto".
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WrittenWriters {
    Number(i64),
    Word(String),
}

impl Config {
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |words: String| Failure::Usage(format!("--config {}: {words}", path.display()));
        let written = toml_file::read(path).map_err(wrong)?;
        let config = Self::checked(written).map_err(wrong)?;
        let secret = |one: &Following| {
            let source = one.source.as_ref();
            one.target.has_secret() || source.is_some_and(Conninfo::has_secret)
        };
        if config.replicas.iter().any(secret) {
            let private = read_secret(path, "the file with passwords");
            private.map_err(|error| wrong(error.to_string()))?;
        }
        Ok(config)
    }

    fn checked(written: Written) -> Result<Self, String> {
        let format = written.log_format.as_deref().map(LogFormat::parse);
        let level = written.log_level.as_deref().map(LogLevel::parse);
        let metrics = written.metrics.as_deref().map(HostPort::parse);
        let key = |key: &'static str| move |words: String| format!("{key}: {words}");
        if !(1..=MOST_REPLICAS).contains(&written.replica.len()) {
            return Err(format!("it needs 1 to {MOST_REPLICAS} times [[replica]]"));
        }
        let mut replicas: Vec<Following> = Vec::new();
        for (listed, number) in written.replica.iter().zip(1..) {
            let place = format!("replica {number}, {}", sanitize(&listed.name));
            let one = following(listed).map_err(|words| format!("{place}: {words}"))?;
            let same = |other: &Following| (&other.name, &other.target) == (&one.name, &one.target);
            if replicas.iter().any(same) {
                return Err(format!("{place}: it is there twice"));
            }
            let folder = |one: &Following| one.spool.as_ref().map(|spool| spool.folder.clone());
            let mine = folder(&one);
            if mine.is_some() && replicas.iter().any(|other| folder(other) == mine) {
                return Err(format!(
                    "{place}: spool_dir: another replica has it; give each a folder of its own"
                ));
            }
            replicas.push(one);
        }
        Ok(Self {
            log_format: (format.transpose())
                .map_err(key("log_format"))?
                .unwrap_or(LogFormat::Text),
            log_level: (level.transpose())
                .map_err(key("log_level"))?
                .unwrap_or(LogLevel::Info),
            metrics: metrics.transpose().map_err(key("metrics"))?,
            replicas,
        })
    }
}

fn following(listed: &Listed) -> Result<Following, String> {
    check_replica_name(&listed.name).map_err(|error| error.to_string())?;
    let conninfo =
        |key: &str, text: &str| Conninfo::parse(text).map_err(|error| format!("{key}: {error}"));
    let source = listed.source.as_deref();
    let given = listed.memory.as_deref().map(memory).transpose();
    let given = given.map_err(|words| format!("memory: {words}"))?;
    let given_writers = listed.writers.as_ref().map(|given| match given {
        WrittenWriters::Number(number) => writers(&number.to_string()),
        WrittenWriters::Word(word) => writers(word),
    });
    let writers = given_writers.transpose();
    let writers = writers.map_err(|words| format!("writers: {words}"))?;
    let limit = listed.spool_limit.as_deref().map(spool_limit).transpose();
    let limit = limit.map_err(|words| format!("spool_limit: {words}"))?;
    if listed.spool_dir.is_some() != limit.is_some() {
        return Err("spool_dir and spool_limit: give both or neither".to_owned());
    }
    Ok(Following {
        name: listed.name.clone(),
        target: conninfo("target", &listed.target)?,
        source: source.map(|text| conninfo("source", text)).transpose()?,
        memory: given.unwrap_or(MEMORY),
        writers: writers.unwrap_or_default(),
        spool: spool(listed.spool_dir.as_deref(), limit),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use lockstep_apply::{SpoolConfig, Writers};

    use super::*;

    const ONE: &str = "[[replica]]\nname = 'a'\ntarget = 'host=/n dbname=t'\n";

    fn read(text: &str, mode: u32) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replicas.toml");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Config::read(&path)
    }

    #[test]
    fn what_is_written_is_read() {
        let more = "source = 'host=s'\nmemory = '64MB'\nwriters = 4\nspool_dir = '/s/a'\n\
             spool_limit = '2GB'\n[[replica]]\nname = 'a'\ntarget = 'host=/o'\n\
             spool_dir = '/s/a'\nspool_limit = '0'\n";
        let config = read(
            &format!("log_format = 'json'\nmetrics = '[::1]:9188'\n{ONE}{more}"),
            0o644,
        )
        .unwrap();
        assert_eq!(config.log_format, LogFormat::Json);
        assert_eq!(config.log_level, LogLevel::Info);
        assert_eq!(config.metrics.as_ref().map(|at| at.port), Some(9188));
        let [first, second] = &config.replicas[..] else {
            panic!("{config:?}");
        };
        assert_eq!((first.name.as_str(), first.memory), ("a", 64 << 20));
        assert_eq!(first.source.as_ref().unwrap().get("host"), Some("s"));
        assert_eq!((second.memory, &second.source), (MEMORY, &None));
        assert_eq!(first.writers, Writers::Number(4));
        assert_eq!(second.writers, Writers::Auto);
        let expected = SpoolConfig {
            folder: PathBuf::from("/s/a"),
            limit: 2 << 30,
        };
        assert_eq!((&first.spool, &second.spool), (&Some(expected), &None));
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        let spooled = format!("{ONE}spool_dir = '/s'\nspool_limit = '1GB'\n");
        for (text, words) in [
            (String::new(), "1 to 100 times [[replica]]"),
            (ONE.repeat(101), "1 to 100 times"),
            (ONE.repeat(2), "replica 2, a: it is there twice"),
            (format!("{ONE}x = 1"), "line 4: unknown field"),
            (
                format!("log_level = 'x'\n{ONE}"),
                "log_level: \"x\" is not allowed",
            ),
            (format!("metrics = '9188'\n{ONE}"), "metrics: "),
            (
                format!("{ONE}writers = 17"),
                "writers: give auto, or 1 to 16",
            ),
            (format!("{ONE}writers = 'many'"), "writers: give auto"),
            (format!("{ONE}spool_dir = '/s'"), "give both or neither"),
            (format!("{ONE}spool_limit = '2GB'"), "give both or neither"),
            (
                format!("{ONE}spool_dir = '/s'\nspool_limit = '1kB'"),
                "spool_limit: give at least 1MB",
            ),
            (
                format!("{spooled}{}", spooled.replace("'a'", "'b'")),
                "replica 2, b: spool_dir: another replica has it",
            ),
            (format!("{ONE}memory = '1kB'"), "memory: give at least 1MB"),
            (format!("{ONE}memory = 'much'"), "replica 1, a: memory: "),
            (ONE.replace("'a'", "'A-b'"), "no name for a replica"),
            (ONE.replace("host=/n", "secret"), "replica 1, a: target: "),
            ("[[replica]]\nname = 'a'".to_owned(), "missing field"),
            (ONE.replace("host=/n", "password=secret"), "mode 0644"),
        ] {
            let error = read(&text, 0o644).unwrap_err();
            assert!(
                matches!(error.downcast_ref(), Some(Failure::Usage(_))),
                "{error}"
            );
            assert!(error.to_string().contains(words), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let secret = ONE.replace("host=/n", "password=secret");
        assert!(read(&secret, 0o600).is_ok());
    }
}
