//! A replica that follows changes of the schema dies around a command, and makes it once.

use lockstep_apply::failpoint::{APPLY_ALTERED, APPLY_COMMITTED, APPLY_PART, APPLY_WRITTEN};
use lockstep_replica::lifecycle::create::{CreateOptions, create};
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::process::Death;
use crate::{Told, conninfo, create_options, values};

/// Failpoints of a transaction with a command.
pub const COVERED: [Failpoint; 4] = [APPLY_ALTERED, APPLY_PART, APPLY_WRITTEN, APPLY_COMMITTED];

/// Columns of table k, and tables that commands have made.
const MADE: &str = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'k'::regclass AND attnum > 0 \
    UNION ALL SELECT relname::text FROM pg_class WHERE relname LIKE 'made\\_%' AND relkind = 'r' ORDER BY 1";

#[test]
fn a_command_is_made_once_whatever_dies() {
    let mut scene = Scene::bare();
    let options = CreateOptions {
        ddl: true,
        ..create_options(conninfo(&scene.source), conninfo(&scene.target))
    };
    create(&options, &mut Told::default()).unwrap();
    for writers in [1, 3] {
        for at in COVERED {
            let provoke = |scene: &Scene| {
                let n = scene.next();
                scene.write(&format!(
                    "ALTER TABLE k ADD c_{n} int DEFAULT {n}, ADD r_{n} float8 DEFAULT random(); UPDATE k SET c_{n} = 1 WHERE id = {n}; \
                     CREATE TABLE made_{n} (a int); INSERT INTO made_{n} VALUES ({n}); \
                     UPDATE made_{n} SET a = a + 1"
                ));
            };
            scene.dies(writers, Death::at(at, 1), provoke);
            scene.goes_on(writers);
            let (theirs, ours) = (values(&scene.source, MADE), values(&scene.target, MADE));
            assert_eq!(theirs, ours, "{}", scene.said());
            let mut tables = vec!["k"];
            tables.extend(
                ours.iter()
                    .map(String::as_str)
                    .filter(|name| name.starts_with("made_")),
            );
            for table in tables {
                let rows = format!("SELECT t::text FROM {table} t ORDER BY 1");
                assert_eq!(
                    values(&scene.source, &rows),
                    values(&scene.target, &rows),
                    "{table}"
                );
            }
        }
    }
}
