//! Reads the blocks that a peer has in memory into a new node's shared buffers.
//!
//! Blocks come in the order of their files. Several sessions take one batch each in turn; between two batches
//! a session holds neither lock nor snapshot, so replay waits for none of them. A batch that the server gives
//! up, for a conflict with replay or a damaged page, is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, field};

use super::error::NewcomerError;
use super::hot::{Batch, Batches, Pace};
use super::peer::{APPLICATION, HOT_SCHEMA};
use crate::session;

/// How long a peer may take to sort its list, of 13 million blocks for 100 GB.
const LIST_PATIENCE: Duration = Duration::from_secs(600);

/// How a node is warmed.
#[derive(Debug, Clone, Copy)]
pub struct Warming {
    pub bytes_per_s: u64,
    pub sessions: usize,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warmed {
    pub blocks_listed: u64,
    pub blocks_read: u64,
    pub block_size: u64,
    /// Databases with such blocks where the extension is missing.
    pub left_out: BTreeSet<String>,
}

/// How long readers alone would need at least until nine tenths of so many blocks are in memory, if they look
/// at so many each second, all equally often; None if they hardly look. That is how long it takes until one
/// in ten has not been drawn yet: in truth readers look at some more often than at others, which takes
/// longer.
pub fn alone(blocks: u64, looks_per_s: f64) -> Option<Duration> {
    let seconds = blocks as f64 * f64::ln(10.0) / looks_per_s;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|_| looks_per_s >= 1.0)
}

/// The new node while it is warmed.
struct Node<'a> {
    name: &'a str,
    warming: Warming,
    block_size: u64,
    began: Instant,
    pace: Mutex<Pace>,
}

/// Reads what a peer has in memory, as much as the node's shared buffers hold. `heard` is told how many
/// blocks of how many were asked for.
pub fn warm(
    (peer, schema): (&Conninfo, &str),
    (name, conninfo): (&str, &Conninfo),
    warming: Warming,
    heard: &(dyn Fn(u64, u64) + Sync),
) -> Result<Warmed, NewcomerError> {
    let wrong = NewcomerError::of(name);
    let mut session = session::open(conninfo, APPLICATION).map_err(&wrong)?;
    let (buffers, block_size) = buffers_of(&mut session).map_err(&wrong)?;
    let names = databases(&mut session).map_err(&wrong)?;
    let batches = list(peer, schema, buffers).map_err(NewcomerError::of("the peer"))?;
    let size = |batches: &[Batch]| batches.iter().map(|one| one.blocks.len() as u64).sum();
    let listed = size(&batches);
    let node = Node {
        name,
        warming,
        block_size,
        began: Instant::now(),
        pace: Mutex::new(Pace::new(warming.bytes_per_s)),
    };
    let mut warmed = Warmed {
        blocks_listed: listed,
        block_size,
        ..Warmed::default()
    };
    heard(0, listed);
    let mut before = 0;
    for batches in batches.chunk_by(|one, next| one.database == next.database) {
        let database = batches.first().map_or(0, |batch| batch.database);
        let place = match (database, names.get(&database)) {
            (0, _) => Some(conninfo.clone()),
            (_, Some(name)) => Some(conninfo.clone().with_database(name).map_err(&wrong)?),
            // It was dropped since, allows no connection, or is a template, which nobody reads.
            (_, None) => None,
        };
        let read = match place {
            Some(place) => node.read(&place, batches, &|asked| heard(before + asked, listed))?,
            None => Some(0),
        };
        match read {
            Some(read) => warmed.blocks_read += read,
            None => warmed.left_out.extend(names.get(&database).cloned()),
        }
        before += size(batches);
    }
    Ok(warmed)
}

fn buffers_of(session: &mut Connection) -> Result<(u64, u64), ClientError> {
    let row = session.query_one(
        "SELECT setting::bigint, current_setting('block_size')::bigint FROM pg_settings \
         WHERE name = 'shared_buffers'",
    )?;
    Ok((field(&row, 0)?, field(&row, 1)?))
}

fn databases(session: &mut Connection) -> Result<BTreeMap<u32, String>, ClientError> {
    let rows = session
        .query("SELECT oid, datname FROM pg_database WHERE datallowconn AND NOT datistemplate")?;
    let read = rows.iter().map(|row| Ok((field(row, 0)?, field(row, 1)?)));
    read.collect()
}

/// The peer's hottest blocks, in the order of their files.
fn list(peer: &Conninfo, schema: &str, most: u64) -> Result<Vec<Batch>, ClientError> {
    let mut session = session::open(peer, APPLICATION)?;
    session.set_patience(LIST_PATIENCE);
    let columns = "reldatabase, reltablespace, relfilenode, relforknumber, relblocknumber";
    let mut copy = session.copy_out(&format!(
        "COPY (SELECT {columns} FROM (SELECT * FROM {schema}.lockstep_hot_blocks() \
         ORDER BY usagecount DESC LIMIT {most}) hot ORDER BY {columns}) TO STDOUT"
    ))?;
    let mut batches = Batches::default();
    while let Some(line) = copy.next()? {
        if !batches.add(&String::from_utf8_lossy(&line)) {
            return Err(ClientError::Protocol(
                "its list of blocks cannot be read".to_owned(),
            ));
        }
    }
    copy.finish()?;
    Ok(batches.finish())
}

impl Node<'_> {
    /// Reads batches of one database with several sessions. None if the extension is missing there.
    fn read(
        &self,
        place: &Conninfo,
        batches: &[Batch],
        heard: &(dyn Fn(u64) + Sync),
    ) -> Result<Option<u64>, NewcomerError> {
        let wrong = NewcomerError::of(self.name);
        let mut first = session::open(place, APPLICATION).map_err(&wrong)?;
        let schema = first.query_opt(HOT_SCHEMA).map_err(&wrong)?;
        let Some(schema) = schema.and_then(|row| row.into_iter().next().flatten()) else {
            return Ok(None);
        };
        let left = Mutex::new((batches.iter(), 0));
        let sessions = self.warming.sessions.clamp(1, batches.len().max(1));
        let mut first = Some(first);
        let read = thread::scope(|scope| {
            let readers: Vec<_> = (0..sessions)
                .map(|_| {
                    let (ours, left, schema) = (first.take(), &left, &schema);
                    scope.spawn(move || self.reader(place, ours, schema, left, heard))
                })
                .collect();
            let mut sum = Ok(0);
            for reader in readers {
                let read = reader.join().unwrap_or_else(|_| {
                    Err(ClientError::Protocol(
                        "a thread that reads has failed".to_owned(),
                    ))
                });
                sum = sum.and_then(|sum: u64| Ok(sum + read?));
            }
            sum
        });
        read.map(Some).map_err(wrong)
    }

    /// One session: takes the next batch, waits for its turn, reads it.
    fn reader<'b>(
        &self,
        place: &Conninfo,
        session: Option<Connection>,
        schema: &str,
        left: &Mutex<(impl Iterator<Item = &'b Batch>, u64)>,
        heard: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, ClientError> {
        let mut session = match session {
            Some(session) => session,
            None => session::open(place, APPLICATION)?,
        };
        let sql = format!("SELECT {schema}.lockstep_read_blocks($1, $2, $3, $4)");
        session.prepare("read", &sql)?;
        let mut read = 0;
        loop {
            let (batch, asked) = {
                let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(batch) = left.0.next() else {
                    return Ok(read);
                };
                left.1 += batch.blocks.len() as u64;
                (batch, left.1)
            };
            let wait = {
                let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
                let bytes = batch.blocks.len() as u64 * self.block_size;
                pace.take(bytes, self.began.elapsed())
            };
            thread::sleep(wait);
            let blocks: Vec<_> = batch.blocks.iter().map(u32::to_string).collect();
            let blocks = format!("{{{}}}", blocks.join(","));
            let answer = session.query_prepared(
                "read",
                &[&batch.tablespace, &batch.file, &batch.fork, &blocks],
            );
            match answer {
                Ok(rows) => read += rows.first().map_or(Ok(0), |row| field::<u64>(row, 0))?,
                Err(_) if !session.is_closed() => {}
                Err(error) => return Err(error),
            }
            heard(asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_alone_need_longer_the_less_they_look() {
        for (blocks, looks_per_s, expected) in [
            (1000, 230.2585, Some(10.0)),
            (1000, 23.02585, Some(100.0)),
            (0, 1.0, Some(0.0)),
            (1000, 0.9, None),
            (1000, 0.0, None),
        ] {
            let alone = alone(blocks, looks_per_s).map(|it| it.as_secs_f64().round());
            assert_eq!(alone, expected, "{blocks} {looks_per_s}");
        }
    }
}
