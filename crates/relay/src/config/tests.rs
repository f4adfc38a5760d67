//! What a configuration may say, and what is said about a wrong one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use lockstep_lab::for_tests;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Some((Path::new("/etc/relay.toml"), text)), &Vec::new())
}

fn flags(flags: &[(&'static str, &str)]) -> Flags {
    flags
        .iter()
        .map(|&(name, text)| (name, text.to_owned()))
        .collect()
}

/// A file with what must be there; `more` begins in line 3.
fn with(more: &str) -> String {
    format!("primary = 'host=db1'\nspool = '/var/spool/relay'\n{more}")
}

#[test]
fn defaults_are_as_documented() {
    let config = parse(&with("")).unwrap();
    let rows: Vec<String> = config
        .rows()
        .into_iter()
        .map(|(name, value, source)| format!("{name}={value} {source}"))
        .collect();
    assert_eq!(
        rows,
        [
            "listen=127.0.0.1:6543 default",
            "primary=host=db1 file",
            "spool=/var/spool/relay file",
            "logical_wal_cache=16MB default",
            "logical_decoding_work_mem=256MB default",
            "spool_limit=0 default",
            "on_spool_limit=wait default",
            "metrics= default",
            "tls_certificate= default",
            "tls_key= default",
            "tls_required=false default",
            "admin_role= default",
            "console_database=postgres default",
            "max_connections=200 default",
            "keep_connections=false default",
            "auto_groups=true default",
            "failover=false default",
            "log_format=text default",
            "log_level=info default",
        ]
    );
}

#[test]
fn everything_can_be_set() {
    let config = parse(&with(
        r#"
listen = "/run/lockstep:7000"
logical_wal_cache = "2GB"
logical_decoding_work_mem = "0"
spool_limit = "100 GB"
on_spool_limit = "drop-slowest"
metrics = "127.0.0.1:9187"
tls_certificate = "server.crt"
tls_key = "/etc/server.key"
tls_required = true
admin_role = "dba"
console_database = "app"
max_connections = 10_000
keep_connections = true
auto_groups = false
failover = true
log_format = "json"
log_level = "debug"

[[group]]
name = "orders"
database = "app"
publications = ["p 2", "p1"]
binary = true
origin = "none"
messages = true
plugin = "pgoutput"
settings = { search_path = "", timezone = "Asia/Tokyo" }

[[group]]
name = "all"
database = "app"
publications = ["p1"]
"#,
    ))
    .unwrap();
    assert_eq!(config.listen.to_string(), "/run/lockstep:7000");
    assert_eq!(config.logical_wal_cache, 2 << 30);
    assert_eq!(config.logical_decoding_work_mem, 0);
    assert_eq!(config.spool_limit, 100 << 30);
    assert_eq!(config.on_spool_limit, OnSpoolLimit::DropSlowest);
    assert_eq!(config.metrics.as_ref().unwrap().port, 9187);
    // Relative paths begin where the file is.
    assert_eq!(
        config.tls_certificate.as_deref(),
        Some(Path::new("/etc/server.crt"))
    );
    assert_eq!(config.max_connections, 10_000);
    assert!(config.failover && config.keep_connections);
    assert_eq!(config.log_level, LogLevel::Debug);
    let mut orders = GroupConfig::new("orders", "app", &["p1", "p 2"]);
    orders.binary = true;
    orders.origin = Origin::None;
    orders.messages = true;
    orders.plugin = Plugin::Pgoutput;
    orders.settings = vec![
        ("TimeZone".to_owned(), "Asia/Tokyo".to_owned()),
        ("search_path".to_owned(), String::new()),
    ];
    assert_eq!(
        config.groups,
        [orders, GroupConfig::new("all", "app", &["p1"])]
    );
    assert_eq!(config.rows().len(), KEYS.len() + 2);
    assert!(config.rows().iter().all(|(_, _, source)| source == "file"));
}

#[test]
fn flags_override_the_file() {
    let text = with("logical_wal_cache = '1GB'\nmetrics = '127.0.0.1:1'");
    let file = Some((Path::new("/etc/relay.toml"), text.as_str()));
    let config = Config::parse(
        file,
        &flags(&[
            ("logical_wal_cache", "0"),
            ("metrics", ""),
            ("max_connections", "7"),
            ("tls_required", "false"),
        ]),
    )
    .unwrap();
    assert_eq!(config.logical_wal_cache, 0);
    assert_eq!(config.metrics, None);
    assert_eq!(config.max_connections, 7);
    let source = |wanted: &str| {
        config
            .rows()
            .into_iter()
            .find(|(name, ..)| name == wanted)
            .unwrap()
            .2
    };
    assert_eq!(source("logical_wal_cache"), "flag");
    assert_eq!(source("primary"), "file");
    assert_eq!(source("log_level"), "default");
    // Flags alone will do.
    let config = Config::parse(None, &flags(&[("primary", "host=a"), ("spool", "here")])).unwrap();
    assert!(config.spool.is_absolute() && config.spool.ends_with("here"));
}

#[test]
fn wrong_files_are_refused_with_line_and_advice() {
    let group =
        |more: &str| format!("[[group]]\nname='a'\ndatabase='d'\npublications=['p']\n{more}");
    for (more, line, words) in [
        ("x = 1", 3, "no key \"x\"; there are listen, primary,"),
        ("\n\nlisten = 1", 5, "listen: write the value as text"),
        ("listen = 'here'", 3, "host:port"),
        ("logical_wal_cache = 16", 3, "such as 16MB"),
        ("logical_wal_cache = '16Mb'", 3, "such as 16MB"),
        ("logical_wal_cache = '1kB'", 3, "from 64kB to 1TB, or 0"),
        ("spool_limit = true", 3, "with a unit"),
        ("spool_limit = '1kB'", 3, "from 1MB"),
        ("on_spool_limit = 'stop'", 3, "wait or drop-slowest"),
        ("metrics = '9187'", 3, "host:port"),
        ("tls_required = 'yes'", 3, "true or false"),
        ("tls_required = true", 3, "tls_certificate and tls_key"),
        ("tls_certificate = 'a'", 3, "tls_key must be set"),
        ("\ntls_key = 'a'", 4, "tls_certificate must be set"),
        ("max_connections = 0", 3, "from 1 to 10000"),
        ("max_connections = 0x10", 3, "from 1 to 10000"),
        ("max_connections = '9'", 3, "whole number"),
        ("max_connections = 99999999999999999999", 3, "from 1 to"),
        ("auto_groups = false", 3, "[[group]]"),
        ("log_format = 'xml'", 3, "text or json"),
        ("log_level = 'all'", 3, "error, warn, info"),
        ("console_database = ''", 3, "1 to 63 bytes"),
        (
            "listen = '127.0.0.1:1'\nlisten = '127.0.0.1:2'",
            4,
            "duplicate",
        ),
        ("listen = ", 3, ""),
        ("[tls]\nkey = 'a'", 3, "no key \"tls\""),
        ("group = 1", 3, "[[group]]"),
        ("group = [1]", 3, "[[group]]"),
        ("[[group]]\nname = 'a'", 3, "has no database"),
        (
            "[[group]]\nname = 'a'\ndatabase='d'",
            3,
            "has no publications",
        ),
        ("[[group]]\ndatabase='d'", 3, "has no name"),
        ("[[group]]\nname = 'A'", 4, "lower-case letters"),
        ("[[group]]\nname = ''", 4, "lower-case letters"),
        (
            &format!("[[group]]\nname = '{}'", "a".repeat(55)),
            4,
            "1 to 54 lower-case letters",
        ),
        ("[[group]]\npublications = 'p'", 4, "in a list"),
        ("[[group]]\npublications = []", 4, "1 to 256"),
        (
            "[[group]]\npublications = ['p', 'p']",
            4,
            "\"p\" is there twice",
        ),
        ("[[group]]\npublications = [1]", 4, "text in quotes"),
        (&group("binary = 1"), 7, "true or false"),
        (&group("origin = 'some'"), 7, "any or none"),
        (
            &group("plugin = 'wal2json'"),
            7,
            "auto, lockstep or pgoutput",
        ),
        (
            &group("two_phase = true"),
            7,
            "no key \"two_phase\"; there are name",
        ),
        (&group("settings = 'x'"), 7, "in a table"),
        (
            &group("settings = { datestyle = 'ISO' }"),
            7,
            "no setting \"datestyle\" here; there are TimeZone, bytea_output",
        ),
        (
            &group("settings = { timezone = 'UTC', TimeZone = 'UTC' }"),
            7,
            "TimeZone is there twice",
        ),
        (
            &group("settings = { TimeZone = 3 }"),
            7,
            "TimeZone: write the value as text",
        ),
        (&group(&group("")), 7, "two groups a"),
        (
            &group("[[group]]\nname='b'\ndatabase='d'\npublications=['p']"),
            7,
            "groups a and b decode the same",
        ),
        (
            &group("[[group]]\nname='b'\ndatabase='d'\npublications=['p']\nplugin='pgoutput'"),
            7,
            "groups a and b decode the same",
        ),
    ] {
        let error = parse(&with(more)).unwrap_err().to_string();
        let place = format!("/etc/relay.toml, line {line}: ");
        assert!(error.starts_with(&place), "{more}: {error}");
        assert!(error.contains(words), "{more}: {error}");
    }
    let many = "[[group]]\n".repeat(MOST_GROUPS + 1);
    assert!(
        parse(&with(&many))
            .unwrap_err()
            .to_string()
            .contains("more than 64 groups")
    );
}

#[test]
fn what_has_no_default_must_be_given() {
    for (text, key) in [
        ("spool = '/s'", "primary"),
        ("primary = 'host=a'", "spool"),
        ("", "primary"),
    ] {
        assert_eq!(
            parse(text).unwrap_err(),
            match key {
                "primary" => ConfigError::Missing { key: "primary" },
                _ => ConfigError::Missing { key: "spool" },
            }
        );
    }
}

#[test]
fn wrong_flags_are_named_as_they_are_typed() {
    for (flag, text, words) in [
        ("logical_wal_cache", "lots", "--logical-wal-cache: \"lots\""),
        ("max_connections", "-1", "--max-connections: \"-1\""),
        (
            "primary",
            "password=hunter2",
            "--primary: a password on the command line",
        ),
        (
            "primary",
            "host=a sslpassword=hunter2",
            "--primary: a password on the command line",
        ),
        (
            "primary",
            "postgres://u:hunter2@h/",
            "--primary: a password on the command line",
        ),
        (
            "primary",
            "host=a password='hunter2",
            "--primary: not a connection string",
        ),
        (
            "primary",
            "hots=a",
            "--primary: not a connection string: invalid connection option \"hots\"",
        ),
        (
            "primary",
            " ",
            "--primary: an empty connection string names no server",
        ),
        ("spool", "", "--spool: a path"),
        ("group", "x", "--group: there is no such key"),
    ] {
        let mut all = flags(&[("primary", "host=a"), ("spool", "/s")]);
        all.push((flag, text.to_owned()));
        let error = Config::parse(None, &all).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn passwords_are_never_shown() {
    let text = "spool = '/s'\nprimary = 'host=a password=hunter2'";
    let config = parse(text).unwrap();
    let other = parse(&text.replace("hunter2", "hunter3")).unwrap();
    let changes: Vec<String> = config
        .differences(&other)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        changes,
        ["primary: its password has changed (takes effect at the next start)"]
    );
    let shown = format!("{config:?} {:?} {changes:?}", config.rows());
    assert!(!shown.contains("hunter"), "{shown}");
    // Nor by the parser's errors.
    for broken in [
        format!("{text}\nlisten = hunter2"),
        text.replace("2'", "2"),
        "primary = ['hunter2']".to_owned(),
    ] {
        let error = parse(&broken).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    }
}

#[test]
fn differences_say_what_takes_a_restart() {
    let group = |name: &str, publication: &str| {
        format!("[[group]]\nname='{name}'\ndatabase='d'\npublications=['{publication}']\n")
    };
    let old = parse(&with(&format!(
        "logical_wal_cache='1MB'\n{}{}",
        group("a", "p"),
        group("b", "q")
    )))
    .unwrap();
    let new = parse(&with(&format!(
        "listen='127.0.0.1:1'\nspool_limit='1GB'\nadmin_role='dba'\n{}{}",
        group("b", "r"),
        group("c", "p")
    )))
    .unwrap();
    let changes: Vec<String> = old
        .differences(&new)
        .iter()
        .map(ToString::to_string)
        .collect();
    let rest = "binary=false origin=any messages=false plugin=auto";
    let later = "(takes effect at the next start)";
    assert_eq!(
        changes,
        [
            format!("listen: 127.0.0.1:6543 -> 127.0.0.1:1 {later}"),
            "logical_wal_cache: 1MB -> 16MB".to_owned(),
            "spool_limit: 0 -> 1GB".to_owned(),
            "admin_role: none -> dba".to_owned(),
            format!("group a: database=d publications=p {rest} -> none {later}"),
            format!(
                "group b: database=d publications=q {rest} -> database=d publications=r {rest} {later}"
            ),
            format!("group c: none -> database=d publications=p {rest}"),
        ]
    );
    assert!(old.differences(&old).is_empty());

    // After a reload only what takes a restart still differs, and nothing is in force that
    // does.
    let in_force = old.clone().with_reloaded(new.clone());
    let pending: Vec<Change> = in_force.differences(&new);
    assert_eq!(
        pending
            .iter()
            .map(|change| change.name.as_str())
            .collect::<Vec<_>>(),
        ["listen", "group a", "group b"]
    );
    let names: Vec<&str> = in_force
        .groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(
        old.differences(&in_force)
            .iter()
            .all(|change| change.applies == Applies::Now)
    );
    let source = |config: &Config, key: &str| config.place(key).source();
    assert_eq!(source(&in_force, "listen"), "default");
    assert_eq!(source(&in_force, "spool_limit"), "file");
    assert_eq!(source(&in_force, "logical_wal_cache"), "default");
}

#[test]
fn every_key_is_copied_or_kept_by_a_reload() {
    let old = parse(&with("")).unwrap();
    let new = parse(
        "primary = 'host=db2'\nspool = '/other'\nlisten = '[::1]:1'\nlogical_wal_cache = '0'\n\
         logical_decoding_work_mem = '1GB'\nspool_limit = '1GB'\non_spool_limit = 'drop-slowest'\nmetrics = '[::1]:2'\n\
         tls_certificate = 'c'\ntls_key = 'k'\ntls_required = true\nadmin_role = 'r'\n\
         console_database = 'd'\nmax_connections = 1\nkeep_connections = true\nauto_groups = false\nfailover = true\n\
         log_format = 'json'\nlog_level = 'warn'\n\
         [[group]]\nname = 'g'\ndatabase = 'd'\npublications = ['p']\n",
    )
    .unwrap();
    // Each key differs, so none was forgotten here.
    assert_eq!(old.differences(&new).len(), KEYS.len() + 1);
    let in_force = old.clone().with_reloaded(new.clone());
    for key in &KEYS {
        let wanted = match key.applies {
            Applies::Now => &new,
            Applies::AtRestart => &old,
        };
        assert_eq!((key.show)(&in_force), (key.show)(wanted), "{}", key.name);
    }
}

/// A folder with a configuration, a spool of mode `spool`, and TLS files.
fn on_disk() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    let text = "primary = 'host=a'\nspool = 'spool'\n\
                tls_certificate = 'crt'\ntls_key = 'key'\n";
    for (name, text) in [("relay.toml", text), ("crt", ""), ("key", "")] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    (folder, file)
}

fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_on_disk_must_be_safe() {
    let (folder, file) = on_disk();
    let at = |name: &str| folder.path().join(name);
    let load = || Config::load(Some(&file), &Vec::new());
    let refused = |words: &str| {
        let error = load().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        error
    };
    // The spool need not exist.
    load().unwrap();
    fs::create_dir(at("spool")).unwrap();
    chmod(at("spool"), 0o750);
    assert!(refused("mode 0750): chmod 0700").contains("line 2"));
    chmod(at("spool"), 0o700);
    load().unwrap();
    chmod(folder.path(), 0o777);
    refused("chmod o-w");
    chmod(folder.path(), 0o1777);
    load().unwrap();
    fs::remove_dir(at("spool")).unwrap();
    fs::write(at("spool"), "").unwrap();
    refused("is no folder");
    fs::remove_file(at("spool")).unwrap();
    chmod(at("key"), 0o644);
    assert!(refused("key is open to others (mode 0644)").contains("line 4"));
    chmod(at("key"), 0o600);
    fs::remove_file(at("crt")).unwrap();
    assert!(refused("crt").contains("line 3"));
    fs::create_dir(at("crt")).unwrap();
    refused("is no file");
}

#[test]
fn a_file_with_a_password_must_not_be_open() {
    let (_folder, file) = on_disk();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("host=a", "password=hunter2")).unwrap();
    let load = |flags: &Flags| Config::load(Some(&file), flags);
    chmod(&file, 0o604);
    let error = load(&Vec::new()).unwrap_err().to_string();
    assert!(error.contains("chmod 0600") && !error.contains("hunter"));
    chmod(&file, 0o640);
    load(&Vec::new()).unwrap();
    // A file without one may be.
    fs::write(&file, text).unwrap();
    chmod(&file, 0o644);
    load(&Vec::new()).unwrap();
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let (folder, file) = on_disk();
    let load = |file: &Path| {
        Config::load(Some(file), &Vec::new())
            .unwrap_err()
            .to_string()
    };
    assert!(load(&folder.path().join("none")).contains("none: cannot be read"));
    assert!(load(folder.path()).contains("cannot be read"));
    assert!(load(Path::new("/dev/zero")).contains("longer than"));
    fs::write(&file, b"\xff").unwrap();
    assert!(load(&file).contains("UTF-8"));
}

#[test]
fn reload_reads_the_same_file_and_flags() {
    let (_folder, file) = on_disk();
    let flags = flags(&[("max_connections", "7")]);
    let config = Config::load(Some(&file), &flags).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        format!("{text}logical_wal_cache = '1MB'\nmax_connections = 8\n"),
    )
    .unwrap();
    let new = config.reload().unwrap();
    assert_eq!(new.max_connections, 7);
    let changes = config.differences(&new);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].to_string(), "logical_wal_cache: 16MB -> 1MB");
    assert_eq!(changes[0].applies, Applies::Now);
}

#[test]
fn any_text_is_parsed_or_refused() {
    let seed = for_tests::number("SEED").unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let whole = with("[[group]]\nname='a'\ndatabase='d'\npublications=['p', 'q']\nbinary=true\n");
    for _ in 0..3000 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..128),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"[]='\n.\"0{},"[random.usize(..11)]),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = parse(&text) {
            assert!(error.to_string().len() < 1000, "seed {seed}: {error}");
        }
    }
}

/// A file of the repository.
fn file(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

/// A default as documents show it.
fn documented(config: &Config, key: &Key) -> String {
    match (key.show)(config) {
        _ if key.required => "must be given".to_owned(),
        value if value.is_empty() => "none".to_owned(),
        value => value,
    }
}

#[test]
fn the_document_lists_every_key_with_its_default() {
    let defaults = parse(&with("")).unwrap();
    let expected: Vec<[String; 3]> = KEYS
        .iter()
        .map(|key| {
            let reload = match key.applies {
                Applies::Now => "yes",
                Applies::AtRestart => "no",
            };
            let default = documented(&defaults, key);
            [key.name.to_owned(), default, reload.to_owned()]
        })
        .collect();
    let text = file("docs/relay.md");
    let (_, table) = text
        .split_once("| key | default | reload | what |")
        .unwrap();
    let rows: Vec<[String; 3]> = table
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| "))
        .map(|line| {
            let mut cells = line
                .split(" | ")
                .map(|cell| cell.trim_matches('`').to_owned());
            std::array::from_fn(|_| cells.next().unwrap())
        })
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn the_example_has_every_key_with_its_default() {
    let example = file("packaging/relay.toml");
    // Only what must be given is set.
    let config = parse(&example).unwrap();
    for (name, _, source) in config.rows() {
        let required = KEYS.iter().any(|key| key.name == name && key.required);
        assert_eq!(source == "file", required, "{name}");
    }
    // The rest are comments without a blank: taken out, they say what is so anyway.
    let all: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let all = parse(&all).unwrap();
    assert!(all.rows().iter().all(|(_, _, source)| source == "file"));
    let optional = ["metrics", "tls_certificate", "tls_key", "admin_role"];
    for change in config.differences(&all) {
        assert!(
            optional.contains(&change.name.as_str()) || change.name == "group orders",
            "{change}"
        );
    }
    assert_eq!(all.groups.len(), 1);
}
