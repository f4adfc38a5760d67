//! What a reload changes takes effect: every key whose row in docs/relay.md says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::relay_support::{Relay, logical, publisher, until, until_same};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};

/// A relay with a configuration file.
struct Scene {
    lab: Lab,
    primary: Server,
    relay: Relay,
    file: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let primary = publisher(&lab);
        primary.run(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t; \
                 CREATE ROLE relay_admin; CREATE ROLE boss LOGIN IN ROLE relay_admin",
        );
        let file = lab.folder().join("relay.toml");
        fs::write(&file, "").unwrap();
        let config = ["--config", file.to_str().unwrap()];
        let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &config);
        Self {
            lab,
            primary,
            relay,
            file,
        }
    }

    /// A command in the console as a role; `more` is added to the conninfo.
    fn ask(&self, user: &str, more: &str, command: &str) -> Result<String, String> {
        let output = Command::new(self.lab.package().program("psql"))
            .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args(["-v", "VERBOSITY=verbose", "-c", command])
            .arg(format!(
                "host=127.0.0.1 port={} user={user} dbname=lockstep {more}",
                self.relay.port
            ))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Reads another configuration; what the relay answers.
    fn reload(&self, text: &str) -> Result<String, String> {
        fs::write(&self.file, text).unwrap();
        self.ask(SUPERUSER, "", "RELOAD")
    }

    /// A number of the only group's row of `SHOW SPOOL`.
    fn spool(&self, column: usize) -> u64 {
        let row = self.relay.console(&self.lab, "SHOW SPOOL");
        row.split('|').nth(column).unwrap().parse().unwrap()
    }

    fn state(&self) -> String {
        let row = self.relay.console(&self.lab, "SHOW UPSTREAM");
        row.split('|').nth(5).unwrap_or_default().to_owned()
    }

    /// Writes about this many megabytes, one in each transaction.
    fn write(&self, from: u32, megabytes: u32) {
        for transaction in from..from + megabytes {
            self.primary.run(&format!(
                "INSERT INTO t SELECT {transaction} * 1000 + i, repeat('x', 1000) \
                     FROM generate_series(1, 950) i"
            ));
        }
    }
}

/// Columns of `SHOW SPOOL`.
const SPOOL_LIMIT: usize = 5;
const CACHE: usize = 6;
const CACHE_LIMIT: usize = 7;

#[test]
fn limits_of_memory_and_disk_change_with_a_reload() {
    let scene = Scene::new();
    let subscriber = scene.lab.primary("subscriber", None, &logical()).unwrap();
    subscriber.run("CREATE TABLE t (id int PRIMARY KEY, v text)");
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION p",
        scene.relay.conninfo()
    ));
    scene.write(1, 3);
    until_same(&scene.primary, &subscriber, "t");
    until("the stream is in memory", || {
        (scene.spool(CACHE) > 1 << 20).then_some(())
    });

    // The cache shrinks at once, with nothing written.
    let said = scene.reload("logical_wal_cache = '256kB'").unwrap();
    assert_eq!(said, "logical_wal_cache: 16MB -> 256kB");
    assert!(scene.spool(CACHE) <= 256 << 10);
    assert_eq!(scene.spool(CACHE_LIMIT), 256 << 10);
    scene.reload("logical_wal_cache = '0'").unwrap();
    assert_eq!(scene.spool(CACHE), 0);
    // And grows with what is written then.
    scene.reload("").unwrap();
    scene.write(10, 3);
    until_same(&scene.primary, &subscriber, "t");
    until("the stream is in memory again", || {
        (scene.spool(CACHE) > 1 << 20).then_some(())
    });

    // The spool's limit, from the next append on: no subscriber confirms anything.
    subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    until("the slot is free", || {
        let pids = "SELECT active_pid FROM lockstep_stat_logical_wal_cache()";
        let free = scene.relay.console(&scene.lab, pids).is_empty();
        free.then_some(())
    });
    scene.reload("spool_limit = '6MB'").unwrap();
    assert_eq!(scene.spool(SPOOL_LIMIT), 6 << 20);
    scene.write(20, 9);
    until("the spool is full", || {
        (scene.state() == "waiting").then_some(())
    });
    scene.reload("spool_limit = '64MB'").unwrap();
    until("there is room", || {
        (scene.state() == "streaming").then_some(())
    });
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until_same(&scene.primary, &subscriber, "t");

    // What happens at the limit, also while it waits there.
    subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    scene.reload("spool_limit = '6MB'").unwrap();
    scene.write(30, 9);
    until("the spool is full again", || {
        (scene.state() == "waiting").then_some(())
    });
    let both = "spool_limit = '6MB'\non_spool_limit = 'drop-slowest'";
    scene.reload(both).unwrap();
    until("the slot is dropped", || {
        let slots = scene.relay.console(&scene.lab, "SHOW SLOTS");
        slots.is_empty().then_some(())
    });
    until("there is room again", || {
        (scene.state() == "streaming").then_some(())
    });
}

/// A certificate for 127.0.0.1 and its key; false where there is no openssl.
fn certificate(certificate: &Path, key: &Path) -> bool {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext"])
        .arg("subjectAltName=IP:127.0.0.1")
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(certificate)
        .output();
    let Ok(output) = made else {
        println!("SKIP: there is no openssl");
        return false;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    true
}

#[test]
fn certificates_and_who_may_do_what_change_with_a_reload() {
    let scene = Scene::new();
    let allowed = || scene.ask("boss", "", "RELOAD");

    // The role that may change things.
    assert!(allowed().unwrap_err().contains("42501"));
    scene.reload("admin_role = 'relay_admin'").unwrap();
    allowed().unwrap();
    scene.reload("").unwrap();
    assert!(allowed().unwrap_err().contains("42501"));

    // TLS begins.
    let [first, second, shown, key, key_of_second] =
        ["first.crt", "second.crt", "shown.crt", "key", "second.key"]
            .map(|name| scene.lab.folder().join(name));
    if !certificate(&first, &key) || !certificate(&second, &key_of_second) {
        return;
    }
    fs::copy(&first, &shown).unwrap();
    let trusting = |root: &Path| {
        let tls = format!("sslmode=verify-full sslrootcert={}", root.display());
        scene.ask(SUPERUSER, &tls, "SHOW VERSION")
    };
    let plain = || scene.ask(SUPERUSER, "sslmode=disable", "SHOW VERSION");
    assert!(trusting(&first).is_err());
    let tls = format!(
        "tls_certificate = '{}'\ntls_key = '{}'\n",
        shown.display(),
        key.display()
    );
    scene.reload(&tls).unwrap();
    trusting(&first).unwrap();
    plain().unwrap();

    // And is required.
    let required = format!("{tls}tls_required = true\n");
    let said = scene.reload(&required).unwrap();
    assert_eq!(said, "tls_required: false -> true");
    trusting(&first).unwrap();
    assert!(plain().unwrap_err().contains("encrypted"));
    scene.reload(&tls).unwrap();
    plain().unwrap();

    // Another certificate in the same files.
    fs::copy(&second, &shown).unwrap();
    let said = scene.reload(&tls).unwrap_err();
    assert!(said.contains("F0000") && said.contains("key"), "{said}");
    trusting(&first).unwrap();
    fs::copy(&key_of_second, &key).unwrap();
    let said = scene.reload(&tls).unwrap();
    assert_eq!(said, "tls_certificate: what is in the file has changed");
    trusting(&second).unwrap();
    assert!(trusting(&first).is_err());
    assert_eq!(scene.reload(&tls).unwrap(), "nothing has changed");

    // One that cannot be used leaves everything as it was, and the answer says so.
    fs::write(&shown, "no certificate").unwrap();
    let changed = format!("{tls}admin_role = 'relay_admin'\n");
    let said = scene.reload(&changed).unwrap_err();
    assert!(said.contains("F0000"), "{said}");
    assert!(said.contains("shown.crt"), "{said}");
    assert!(said.contains("has not changed"), "{said}");
    trusting(&second).unwrap();
    assert!(allowed().unwrap_err().contains("42501"));
    // TLS ends.
    scene.reload("").unwrap();
    assert!(trusting(&second).is_err());
    plain().unwrap();
}

/// The recipe of docs/relay.md for a group from the configuration whose slot is gone.
#[test]
fn a_configured_group_that_failed_begins_anew_by_hand() {
    let mut scene = Scene::new();
    let subscriber = scene.lab.primary("subscriber", None, &logical()).unwrap();
    subscriber.run("CREATE TABLE t (id int PRIMARY KEY, v text)");
    scene
        .reload("[[group]]\nname = 'orders'\ndatabase = 'postgres'\npublications = ['p']\n")
        .unwrap();
    until("the group streams", || {
        (scene.state() == "streaming").then_some(())
    });
    let subscribe = |scene: &Scene| {
        let conninfo = scene.relay.conninfo();
        subscriber.run(&format!(
            "CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p"
        ));
        until_same(&scene.primary, &subscriber, "t");
        until("the group has the slot", || {
            let slots = scene.relay.console(&scene.lab, "SHOW SLOTS");
            slots.starts_with("s|postgres|orders|").then_some(())
        });
    };
    scene.write(1, 1);
    subscribe(&scene);

    until("its slot is gone", || {
        let of_group = "FROM pg_replication_slots WHERE slot_name LIKE 'lockstep_orders_%'";
        let primary = &scene.primary;
        primary
            .query_text(&format!(
                "SELECT count(pg_terminate_backend(active_pid))::text {of_group} AND active"
            ))
            .unwrap();
        primary
            .execute(&format!(
                "SELECT pg_drop_replication_slot(slot_name) {of_group}"
            ))
            .ok()
    });
    until("the group fails", || {
        (scene.state() == "failed").then_some(())
    });
    subscriber.run("DROP SUBSCRIPTION s");
    subscriber.run("TRUNCATE t");
    assert_eq!(scene.relay.stop(), Some(0));
    fs::remove_dir_all(scene.relay.spool.join("groups/orders")).unwrap();
    scene.relay.restart();
    until("the group streams again", || {
        (scene.state() == "streaming").then_some(())
    });
    subscribe(&scene);
    scene.write(5, 1);
    until_same(&scene.primary, &subscriber, "t");
    drop(subscriber);
}
