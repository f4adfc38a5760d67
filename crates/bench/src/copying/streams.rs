//! Rows of one table, by as many sessions as wanted: each server alone, `psql` twice, and as many
//! bytes over the loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Instant;

use lockstep_client::field;
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::{Pinning, Side};

use super::Took;
use super::servers::{Servers, connect, conninfo, execute, refused};
use crate::{BenchError, Result};

/// Bytes of one row of the reference's table in the binary format: the number of values, ten
/// lengths, and the values.
pub const ROW_BYTES: u64 = 2 + 10 * 4 + 16 + 2 + 4 + 2 + 6 * 8;

/// What makes the reference's table.
pub const CREATE: &str = "CREATE TABLE reference (worker_id uuid NOT NULL, \
     worker_lid smallint NOT NULL, node_id int NOT NULL, thread_id smallint NOT NULL, \
     range bigint NOT NULL, range_min bigint NOT NULL, range_max bigint NOT NULL, \
     row_number bigint NOT NULL, random_seed bigint NOT NULL, random bigint NOT NULL)";

/// Statements that make the table and fill it with this number of rows.
pub fn filled(rows: u64) -> String {
    format!(
        "{CREATE}; INSERT INTO reference SELECT md5(n::text)::uuid, n % 100, n % 1000, n % 64, \
             n / 1000, n, n + 1000, n, n * 7, hashint8extended(n, 0) \
         FROM generate_series(1::bigint, {rows}) n"
    )
}

/// Rows that the target is given again and again when it is measured alone.
const BLOCK_ROWS: u64 = 10_000;

/// What begins a binary copy: signature, flags, length of an extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// What ends it.
const TRAILER: &[u8] = &[0xff, 0xff];

/// Bytes of one write to the loopback.
const CHUNK: usize = 64 * 1024;

/// Format of plain copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Binary,
}

/// Runs a session for each part, and times all of them together.
fn timed(jobs: u32, one: impl Fn(u32) -> Result<()> + Sync) -> Result<Took> {
    let began = Instant::now();
    thread::scope(|scope| {
        let one = &one;
        let parts: Vec<_> = (0..jobs)
            .map(|part| scope.spawn(move || one(part)))
            .collect();
        parts.into_iter().try_for_each(|part| {
            let died = |_| Err(BenchError::Unusable("a session's thread died".to_owned()));
            part.join().unwrap_or_else(died)
        })
    })?;
    Ok(Took::whole(began.elapsed().as_secs_f64()))
}

/// The source's rows in parts of about the same number of blocks.
fn parts(servers: &Servers, jobs: u32) -> Result<Vec<String>> {
    if jobs == 1 {
        return Ok(vec!["reference".to_owned()]);
    }
    let refused = refused(&servers.source);
    let sql = "SELECT pg_relation_size('reference') / current_setting('block_size')::int";
    let row = connect(&servers.source)?.query_one(sql);
    let blocks: u64 = row.and_then(|row| field(&row, 0)).map_err(refused)?;
    let bound = |part: u32| blocks * u64::from(part) / u64::from(jobs);
    let part = |part| {
        let (from, to) = (bound(part), bound(part + 1));
        format!("(SELECT * FROM reference WHERE ctid >= '({from},0)' AND ctid < '({to},0)')")
    };
    Ok((0..jobs).map(part).collect())
}

/// Lets the source send all its rows, which are thrown away.
pub fn source_alone(servers: &Servers, jobs: u32) -> Result<Took> {
    let parts = parts(servers, jobs)?;
    let sent = std::sync::atomic::AtomicU64::new(0);
    let took = timed(jobs, |part| {
        let Some(rows) = parts.get(part as usize) else {
            return Ok(());
        };
        let mut session = connect(&servers.source)?;
        let copied = session
            .copy_out(&format!("COPY {rows} TO STDOUT (FORMAT binary)"))
            .and_then(|copy| copy.finish());
        let rows = copied.map_err(refused(&servers.source))?;
        sent.fetch_add(rows, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    })?;
    let (sent, all) = (sent.into_inner(), servers.rows());
    match sent == all {
        true => Ok(took),
        false => Err(LabError::Measurement(format!("the source sent {sent} of {all} rows")).into()),
    }
}

/// Lets the target take as many rows as the source has, from memory. As Lockstep does, its sessions
/// commit asynchronously, and a table that one session loads is frozen.
pub fn target_alone(servers: &Servers, jobs: u32) -> Result<Took> {
    let block = block(servers)?;
    let row = usize::try_from(ROW_BYTES).unwrap_or(usize::MAX);
    let (rows, jobs_wide) = (servers.rows(), u64::from(jobs));
    let bound = |part: u64| rows * part / jobs_wide;
    execute(&servers.target, CREATE)?;
    timed(jobs, |part| {
        let refused = refused(&servers.target);
        let mut session = connect(&servers.target)?;
        let mut left = bound(u64::from(part) + 1) - bound(u64::from(part));
        let async_commit = "SET synchronous_commit = off";
        session.execute(async_commit).map_err(&refused)?;
        let sql = match jobs {
            1 => {
                "BEGIN; TRUNCATE reference; COPY reference FROM STDIN (FORMAT binary, FREEZE); COMMIT"
            }
            _ => "COPY reference FROM STDIN (FORMAT binary)",
        };
        let mut copy = session.copy_in(sql).map_err(&refused)?;
        copy.send(HEADER).map_err(&refused)?;
        while left > 0 {
            let now = left.min(BLOCK_ROWS);
            let bytes = usize::try_from(now).unwrap_or(usize::MAX) * row;
            // The block repeats fewer rows if the source has not so many.
            let bytes = block.get(..bytes).unwrap_or(&block);
            copy.send(bytes).map_err(&refused)?;
            left -= u64::try_from(bytes.len() / row).unwrap_or(left).min(left);
        }
        copy.send(TRAILER).map_err(&refused)?;
        copy.finish().map(drop).map_err(&refused)
    })
}

/// Some rows of the source in the binary format, without what begins and ends a copy.
fn block(servers: &Servers) -> Result<Vec<u8>> {
    let refused = refused(&servers.source);
    let mut session = connect(&servers.source)?;
    let sql =
        format!("COPY (SELECT * FROM reference LIMIT {BLOCK_ROWS}) TO STDOUT (FORMAT binary)");
    let mut copy = session.copy_out(&sql).map_err(&refused)?;
    let mut all = Vec::new();
    while let Some(data) = copy.next().map_err(&refused)? {
        all.extend_from_slice(&data);
    }
    let rows = all
        .strip_prefix(HEADER)
        .and_then(|rest| rest.strip_suffix(TRAILER))
        .unwrap_or_default();
    let whole = u64::try_from(rows.len()).is_ok_and(|bytes| bytes > 0 && bytes % ROW_BYTES == 0);
    match whole {
        true => Ok(rows.to_vec()),
        false => Err(LabError::Measurement("the source sent other rows".to_owned()).into()),
    }
}

/// `psql -c 'COPY ... TO STDOUT' | psql -c 'COPY ... FROM STDIN'`, as people do it.
pub fn psql(lab: &Lab, servers: &Servers, jobs: u32, format: Format) -> Result<Took> {
    let parts = parts(servers, jobs)?;
    let format = match format {
        Format::Text => "text",
        Format::Binary => "binary",
    };
    let psql = lab.package().program("psql");
    let psql = format!("{} --no-psqlrc --quiet", psql.display());
    let (source, target) = (conninfo(&servers.source), conninfo(&servers.target));
    execute(&servers.target, CREATE)?;
    timed(jobs, |part| {
        let Some(rows) = parts.get(part as usize) else {
            return Ok(());
        };
        let script = format!(
            "{psql} '{source}' -c \"COPY {rows} TO STDOUT (FORMAT {format})\" | \
             {psql} '{target}' -c 'COPY reference FROM STDIN (FORMAT {format})'"
        );
        let mut shell = lab.launcher().command("/bin/sh");
        shell.arg("-c").arg(script);
        Ok(lab.launcher().run(shell)?)
    })
}

/// Sends so many bytes over the loopback, from the source's core to the target's.
pub fn loopback(pinning: &Pinning, jobs: u32, bytes: u64) -> Result<Took> {
    let io = |what| BenchError::io(what, Path::new("127.0.0.1"));
    timed(jobs, |_| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io("listen on"))?;
        let address = listener.local_addr().map_err(io("listen on"))?;
        let each = bytes / u64::from(jobs);
        thread::scope(|scope| {
            let sender = scope.spawn(move || {
                pinning.pin_current_thread(Side::Primary);
                send(&mut TcpStream::connect(address)?, each)
            });
            let (mut socket, _) = listener.accept().map_err(io("accept on"))?;
            pinning.pin_current_thread(Side::Standby);
            let taken = take(&mut socket).map_err(io("read from"))?;
            let sent = sender.join();
            let died = |_| Err(std::io::Error::other("the sender's thread died"));
            sent.unwrap_or_else(died).map_err(io("write to"))?;
            match taken == each {
                true => Ok(()),
                false => Err(BenchError::Unusable(format!(
                    "the loopback lost bytes: {taken} of {each} arrived"
                ))),
            }
        })
    })
}

fn send(socket: &mut TcpStream, bytes: u64) -> std::io::Result<()> {
    let chunk = vec![7; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        socket.write_all(chunk.get(..now).unwrap_or_default())?;
        left -= u64::try_from(now).unwrap_or(left);
    }
    Ok(())
}

fn take(socket: &mut TcpStream) -> std::io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut taken = 0;
    loop {
        match socket.read(&mut chunk)? {
            0 => return Ok(taken),
            bytes => taken += u64::try_from(bytes).unwrap_or(u64::MAX),
        }
    }
}
