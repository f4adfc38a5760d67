//! A server with small segments, and statements that write records of many kinds.

use lockstep_lab::cluster::Lab;
use lockstep_lab::error::Role;
use lockstep_lab::server::{Server, Stop};

const SCENE: &str = "
CREATE TABLE t (id bigserial PRIMARY KEY, v int, w text, p point);
CREATE INDEX ON t (v);
CREATE INDEX ON t USING hash (v);
CREATE INDEX ON t USING gist (p);
CREATE INDEX ON t USING spgist (p);
CREATE INDEX ON t USING brin (id);
CREATE INDEX ON t USING gin (to_tsvector('simple', w));
CREATE TABLE big (b bytea);
ALTER TABLE big ALTER b SET STORAGE EXTERNAL;";

/// A server whose segments have 1 MB, and which keeps all of them.
pub fn server(lab: &Lab, name: &str, settings: &[(&str, &str)]) -> Server {
    let mut server = lab.server(Role::Primary, name, None).unwrap();
    server.init().unwrap();
    let mut resize = lab.launcher().command(lab.package().program("pg_resetwal"));
    resize.arg("--wal-segsize=1").arg("-D").arg(server.data());
    lab.launcher().run(resize).unwrap();
    let always = [
        ("wal_level", "logical"),
        ("max_prepared_transactions", "4"),
        ("autovacuum", "off"),
        ("max_wal_size", "1GB"),
        ("wal_keep_size", "1GB"),
    ];
    server.set(always.iter().chain(settings).copied()).unwrap();
    server.start().unwrap();
    server.execute(SCENE).unwrap();
    server
}

/// Statements that the generator chooses.
pub fn write(server: &Server, random: &mut fastrand::Rng, steps: u32) {
    for step in 0..steps {
        let (a, b) = (random.u32(0..50_000), random.u32(1..400));
        let statement = match random.u32(0..16) {
            0..=3 => format!(
                "INSERT INTO t (v, w, p) SELECT i % 97, md5(i::text) || ' ' || i, point(i, i % 13) \
                 FROM generate_series({a}, {a} + {b}) AS i"
            ),
            4..=5 => format!("UPDATE t SET v = v + 1 WHERE id % 17 = {b} % 17"),
            6 => format!("DELETE FROM t WHERE id % 23 = {b} % 23"),
            7 => "VACUUM t".to_owned(),
            8 => format!("INSERT INTO big VALUES (decode(repeat('ab', {a}), 'hex'))"),
            9 => "CHECKPOINT".to_owned(),
            10 => format!("SELECT pg_logical_emit_message(true, 'p', repeat('x', {a} * 60))"),
            11 => "SELECT pg_switch_wal()".to_owned(),
            12 => format!(
                "CREATE TABLE c{step} AS SELECT i FROM generate_series(1, {b}) AS i; \
                 TRUNCATE c{step}; DROP TABLE c{step}"
            ),
            13 => format!(
                "BEGIN; INSERT INTO t (v) VALUES ({a}); SAVEPOINT s; DELETE FROM t WHERE id = {a}; \
                 ROLLBACK TO s; PREPARE TRANSACTION 'x'"
            ),
            14 => format!("SELECT * FROM t WHERE id % 31 = {b} % 31 FOR UPDATE"),
            _ => "COPY t (v, w) FROM PROGRAM 'seq -f \"%g,x\" 1 2000' (FORMAT csv)".to_owned(),
        };
        server.execute(&statement).unwrap();
        if statement.ends_with("'x'") {
            server.execute("COMMIT PREPARED 'x'").unwrap();
        }
    }
}

/// A stopped server's `pg_wal`, copied into a folder of the test's own.
pub fn copy_of_wal(server: &mut Server, how: Stop) -> tempfile::TempDir {
    server.stop(how).unwrap();
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(server.data().join("pg_wal")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    copy
}
