//! A relay whose primary has described more tables than it carries along connects again, and its client
//! misses nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Next, Purpose};
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::SUPERUSER;
use lockstep_wire::Lsn;
use lockstep_wire::logical::{Context, Message};
use lockstep_wire::stream::{FromServer, FromStandby, Status};

use crate::relay_support::{Relay, publisher, until};

/// Tables of 1,600 columns with the longest names: a description has 117 kB, all of them 35 MB.
const TABLES: usize = 300;
const WORDS: &str = "the descriptions of tables take";

const MAKE: &str = "DO $$ DECLARE c text; BEGIN
    SELECT string_agg(format('%s int', rpad('c' || i || '_', 63, 'x')), ', ') INTO c
        FROM generate_series(1, 1600) i;
    FOR t IN 1..TABLES LOOP EXECUTE format('CREATE TABLE t%s (%s)', t, c); COMMIT; END LOOP;
END $$";
const FILL: &str = "DO $$ BEGIN FOR t IN 1..TABLES LOOP
    EXECUTE format('INSERT INTO t%s DEFAULT VALUES', t); COMMIT;
END LOOP; END $$";

/// What a client has of a slot's stream.
#[derive(Default)]
struct Reader {
    /// Tables of the rows that were committed, and the end of the last transaction.
    tables: Vec<u32>,
    at: Lsn,
    connections: usize,
}

impl Reader {
    /// Reads until this number of rows has come, connecting again where the relay asks for it.
    fn read(conninfo: &Conninfo, rows: usize) -> Self {
        let mut reader = Self::default();
        while reader.tables.len() < rows {
            reader.connections += 1;
            match reader.stream(conninfo, rows) {
                Err(ClientError::Refused(refusal)) if refusal.sqlstate == "57P01" => {}
                ended => ended.unwrap(),
            }
        }
        reader
    }

    /// Reads over one connection; each table must be described before its first row.
    fn stream(&mut self, conninfo: &Conninfo, rows: usize) -> Result<(), ClientError> {
        let options = [("proto_version", "1"), ("publication_names", "p")];
        let options = options.map(|(name, value)| (name, value.to_owned()));
        let mut stream = until("the slot is free", || {
            let connection = Connection::connect(conninfo, Purpose::Replication, "test").unwrap();
            connection.start("s", self.at, &options).ok()
        });
        let (mut described, mut open) = (BTreeSet::new(), Vec::new());
        while self.tables.len() < rows {
            let data = match stream.next()? {
                Next::Data(data) => data,
                Next::NotYet => {
                    let ready = stream.wait(None, Duration::from_secs(180))?;
                    assert!(ready.input, "nothing more after {} rows", self.tables.len());
                    continue;
                }
                Next::Ended => panic!("the stream ended after {} rows", self.tables.len()),
            };
            let wal = match FromServer::parse(data.as_ref()).unwrap() {
                FromServer::XLogData { wal, .. } => wal,
                FromServer::Keepalive { .. } => {
                    stream.send(&FromStandby::Status(Status::default()))?;
                    continue;
                }
            };
            match Message::parse(wal, Context::default()).unwrap().1 {
                Message::Relation(relation) => {
                    described.insert(relation.id);
                }
                Message::Insert { relation, .. } => {
                    assert!(
                        described.contains(&relation),
                        "{relation} was not described"
                    );
                    open.push(relation);
                }
                Message::Commit(commit) => {
                    self.tables.append(&mut open);
                    self.at = commit.end_lsn;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn a_client_misses_nothing_when_its_relay_connects_again() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let of_tables = |sql: &str| sql.replace("TABLES", &TABLES.to_string());
    primary.run(&of_tables(MAKE));
    primary.run("CREATE PUBLICATION p FOR ALL TABLES");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let conninfo = Conninfo::parse(&relay.conninfo()).unwrap();
    let mut maker = Connection::connect(&conninfo, Purpose::Replication, "test").unwrap();
    maker.create_slot("s", "pgoutput", false, false).unwrap();
    primary.run(&of_tables(FILL));
    primary.run("INSERT INTO t1 DEFAULT VALUES");
    let first = Reader::read(&conninfo, TABLES + 1);
    let all: BTreeSet<_> = first.tables.iter().copied().collect();
    assert_eq!(all.len(), TABLES);
    assert_eq!(first.tables.first(), first.tables.last(), "t1");
    assert!(relay.log().contains(WORDS), "{}", relay.log());
    assert!(first.connections <= 2, "{}", first.connections);
    // Another client, whom the relay's log serves from the beginning.
    let second = Reader::read(&conninfo, TABLES + 1);
    assert_eq!((second.tables, second.connections), (first.tables, 1));
}
