//! Making segments, and the first one of a log.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use lockstep_wire::Lsn;
use tokio::sync::watch;

use super::error::{LogError, Result};
use super::index::{Entry, Index};
use super::log::{End, Limits, Log};
use super::mark::{self, Mark};
use super::newest::Writer;
use super::position::{LogPosition, Place};
use super::schema::Schema;
use super::segment::{
    CHUNK_BYTES, Marks, Named, RecordHeader, RecordKind, SegmentHeader, file_name, read_name,
    unfinished_name,
};
use super::state::{Boundary, LogState, Start, TailSegment};
use super::storage::{SpoolFile, Storage};

/// A segment with its header and schema. Nothing of it is durable.
pub(super) struct NewSegment<F> {
    pub file: F,
    pub bytes: u64,
}

/// Makes a segment. It does not have its final name yet.
pub(super) fn create_segment<S: Storage>(
    storage: &S,
    header: &SegmentHeader,
    schema: &Schema,
) -> Result<NewSegment<S::File>> {
    let name = unfinished_name(header.sequence, header.position);
    write_segment(storage, &name, header, schema).map_err(|source| {
        // It takes space that may be what is missing; opening the log removes it otherwise.
        let _ = storage.remove(&name);
        LogError::io("create", &name, source)
    })
}

fn write_segment<S: Storage>(
    storage: &S,
    name: &str,
    header: &SegmentHeader,
    schema: &Schema,
) -> std::io::Result<NewSegment<S::File>> {
    let file = storage.create(name)?;
    file.write_at(0, &header.encode())?;
    let mut bytes = header.encode().len() as u64;
    let mut payload = Vec::new();
    let mut frames = schema.frames().peekable();
    while let Some(frame) = frames.next() {
        payload.extend_from_slice(frame);
        let next = frames.peek().map(|next: &&Bytes| next.len());
        if next.is_some_and(|next| payload.len() + next <= CHUNK_BYTES) {
            continue;
        }
        let record = RecordHeader::new(
            RecordKind::Schema,
            Marks::default(),
            header.position,
            &payload,
            header.sequence,
        );
        file.write_at(bytes, &record.encode(header.sequence))?;
        bytes += record.record_bytes();
        file.write_at(bytes - payload.len() as u64, &payload)?;
        payload.clear();
    }
    Ok(NewSegment { file, bytes })
}

/// Makes a segment that is durable and has its name.
pub(super) fn create_durable_segment<S: Storage>(
    storage: &S,
    header: &SegmentHeader,
    schema: &Schema,
) -> Result<NewSegment<S::File>> {
    let segment = create_segment(storage, header, schema)?;
    let unfinished = unfinished_name(header.sequence, header.position);
    let name = file_name(header.sequence, header.position);
    let named = segment
        .file
        .sync()
        .and_then(|()| storage.rename(&unfinished, &name))
        .and_then(|()| storage.sync());
    named.map_err(|source| LogError::io("create", &name, source))?;
    Ok(segment)
}

/// What a log is made of, everything durable.
pub(super) struct Parts<F> {
    pub header: SegmentHeader,
    pub file: F,
    /// Bytes of the newest segment, and of its header and schema.
    pub bytes: u64,
    pub head: u64,
    pub index: Index,
    /// Where the last whole unit ends.
    pub end: LogPosition,
    pub received: Lsn,
    pub whole_key: Lsn,
    pub schema: Schema,
    pub mark: Mark<F>,
}

/// An LSN right before `lsn`.
pub(super) fn before(lsn: Lsn) -> Lsn {
    Lsn::from(u64::from(lsn).saturating_sub(1))
}

impl<S: Storage> Log<S> {
    /// Begins a log in an empty folder. It will hold the units with key `start` or later.
    pub fn create(storage: S, limits: Limits, start: Lsn) -> Result<Self> {
        let names = storage
            .list()
            .map_err(|source| LogError::io("list", "", source))?;
        if names.iter().any(|name| is_segment(name)) {
            return Err(LogError::Exists);
        }
        let header = SegmentHeader {
            sequence: 1,
            group_start: start,
            position: LogPosition::START,
            received: start,
            open: None,
            previous_bytes: 0,
        };
        let schema = Schema::default();
        // Before the segment: an older one of another log might say more than this one has.
        let mark = Mark::create(&storage, start)
            .map_err(|source| LogError::io("create", mark::FILE, source))?;
        let NewSegment { file, bytes } = create_durable_segment(&storage, &header, &schema)?;
        let mut index = Index::default();
        index.push(Entry::new(&header, bytes));
        let parts = Parts {
            header,
            file,
            bytes,
            head: bytes,
            index,
            end: LogPosition::START,
            received: start,
            whole_key: before(start),
            schema,
            mark,
        };
        Ok(Self::assemble(storage, limits, parts))
    }

    pub(super) fn assemble(storage: S, limits: Limits, parts: Parts<S::File>) -> Self {
        parts.mark.note(parts.received);
        let file = Arc::new(parts.file);
        let sequence = parts.header.sequence;
        let place = Place {
            segment: sequence,
            offset: parts.bytes,
        };
        let end = End {
            position: parts.end,
            received: parts.received,
            generation: 0,
        };
        let writer = Writer {
            sequence,
            first: parts.header.position,
            file: Arc::clone(&file),
            offset: parts.bytes,
            head: parts.head,
            // Whatever comes next comes from a new session.
            session: true,
            buffer: Vec::new(),
        };
        let shared = LogState::new(Start {
            cache_limit: limits.cache_bytes,
            index: parts.index,
            newest: TailSegment {
                sequence,
                position: parts.header.position,
                file,
                named: true,
            },
            received: parts.received,
            boundary: Boundary {
                position: parts.end,
                place,
            },
            whole_key: parts.whole_key,
            schema: parts.schema,
        });
        Self {
            storage,
            limits: Mutex::new(limits),
            start: parts.header.group_start,
            writer: Mutex::new(writer),
            removing: Mutex::new(()),
            syncing: Mutex::new(()),
            shared: Mutex::new(shared),
            ends: watch::Sender::new(end),
            mark: parts.mark,
        }
    }
}

fn is_segment(name: &str) -> bool {
    matches!(read_name(name), Named::Segment { .. })
}
