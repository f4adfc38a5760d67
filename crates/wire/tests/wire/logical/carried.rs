//! What carries messages: batches and frames.

use fastrand::Rng;
use lockstep_wire::batch::{Entry, Payload, put_batch, put_marker};
use lockstep_wire::frame::{self, LOGICAL_LIMIT};
use lockstep_wire::logical::frames::{self, FRAME_HEADER, FrameAt, MOST_MESSAGE, put_frame, scan};
use lockstep_wire::stream::{FromServer, Timestamp};
use lockstep_wire::{Lsn, WireError};

use crate::rng;

fn entry(lsn: u64, time: i64, message: &[u8]) -> Entry<'_> {
    Entry {
        lsn: lsn.into(),
        time: Timestamp(time),
        message,
    }
}

/// All entries, or the error that ends them.
fn entries(data: &[u8]) -> Result<Vec<Entry<'_>>, WireError> {
    match Payload::parse(data, true)? {
        Payload::Batch(entries) => entries.collect(),
        other => panic!("no batch: {other:?}"),
    }
}

const BATCH: &[u8] =
    b"B\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\x02I1\0\0\0\x16\xB3\x74\xD8\x48\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0\0\0\x01C";

#[test]
fn batches_are_read_and_written() {
    let expected = [entry(0, 7, b"I1"), entry(0x16_B374_D848, -1, b"C")];
    assert_eq!(entries(BATCH).unwrap(), expected);
    let mut out = Vec::new();
    put_batch(&mut out, &expected).unwrap();
    assert_eq!(out, BATCH);

    let mut out = Vec::new();
    put_marker(&mut out);
    assert_eq!(out, b"O");
    assert!(matches!(Payload::parse(b"O", true), Ok(Payload::Marker)));
}

#[test]
fn without_batches_a_message_is_itself() {
    for message in [BATCH, b"O", b"C", b""] {
        match Payload::parse(message, false) {
            Ok(Payload::Plain(plain)) => assert_eq!(plain, message),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_batch_cut_short_or_too_long_is_an_error() {
    for length in 0..BATCH.len() {
        assert!(entries(&BATCH[..length]).is_err(), "{length}");
    }
    // Entries before the missing part can be read all the same.
    let Ok(Payload::Batch(mut cut)) = Payload::parse(&BATCH[..BATCH.len() - 1], true) else {
        panic!();
    };
    assert_eq!(cut.next(), Some(Ok(entry(0, 7, b"I1"))));
    assert!(matches!(cut.next(), Some(Err(_))));
    assert_eq!(cut.next(), None);

    let more = [BATCH, b"\0"].concat();
    assert!(entries(&more).is_err());
    // An impossible number of entries is refused before the first entry.
    let many = [b"B\0\0\0\x03", &BATCH[5..]].concat();
    assert!(Payload::parse(&many, true).is_err());
    for data in [
        &b""[..],
        // Neither a batch nor a marker.
        b"C",
        b"OO",
        // No entries, more than there can be, an empty message, a negative length.
        b"B\0\0\0\0",
        b"B\xFF\xFF\xFF\xFF",
        b"B\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\x02I1",
        b"B\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\0",
        b"B\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\xFF\xFF\xFF\xFF",
    ] {
        let all = Payload::parse(data, true).and_then(|payload| match payload {
            Payload::Batch(entries) => entries.collect(),
            _ => Ok(Vec::new()),
        });
        assert!(all.is_err(), "{data:?}");
    }
}

const FRAME: &[u8] =
    b"d\0\0\0\x1Fw\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\0\0\0\0\x07I1";

#[test]
fn frames_are_what_a_walsender_sends() {
    let mut out = Vec::new();
    let lsn = Lsn::from(0x16_B374_D848);
    put_frame(&mut out, lsn, Timestamp(7), b"I1").unwrap();
    assert_eq!(out, FRAME);
    assert_eq!(FRAME_HEADER, 30);

    let (frame, used) = frame::first(&out, LOGICAL_LIMIT).unwrap().unwrap();
    assert_eq!((frame.tag, used), (b'd', out.len()));
    assert_eq!(
        FromServer::parse(frame.body),
        Ok(FromServer::XLogData {
            start: lsn,
            end: lsn,
            sent_at: Timestamp(7),
            wal: b"I1"
        })
    );
}

/// Frames of random messages, and where each begins.
fn some_frames(rng: &mut Rng) -> (Vec<u8>, Vec<usize>) {
    let (mut out, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..rng.usize(..6) {
        starts.push(out.len());
        let message: Vec<u8> = (0..rng.usize(..20)).map(|_| rng.u8(..)).collect();
        let lsn = Lsn::from(rng.u64(..));
        put_frame(&mut out, lsn, Timestamp(rng.i64(..)), &message).unwrap();
    }
    (out, starts)
}

#[test]
fn frames_are_found_one_after_the_other() {
    let mut rng = rng();
    for _ in 0..300 {
        let (bytes, starts) = some_frames(&mut rng);
        let frames: Vec<FrameAt<'_>> = scan(&bytes).collect::<Result<_, _>>().unwrap();
        let offsets: Vec<usize> = frames.iter().map(|frame| frame.offset).collect();
        assert_eq!(offsets, starts);
        let mut again = Vec::new();
        for frame in &frames {
            assert_eq!(frame.length, FRAME_HEADER + frame.message.len());
            put_frame(&mut again, frame.lsn, frame.sent_at, frame.message).unwrap();
        }
        assert_eq!(again, bytes);

        // Of bytes that are cut short, the whole frames are found, then one error or none.
        for length in 0..bytes.len() {
            let mut scan = scan(&bytes[..length]);
            let whole = scan.by_ref().take_while(Result::is_ok).count();
            let border = frames.iter().take(whole).map(|frame| frame.length).sum();
            assert_eq!(scan.offset(), border);
            assert_eq!(
                whole,
                starts.iter().skip(1).filter(|&&at| at <= length).count()
            );
            assert_eq!(frames::first(&bytes[border..length]), Ok(None));
            assert!(scan.next().is_none());
        }
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    assert!(scan(FRAME).all(|frame| frame.is_ok()));
    let with = |at: usize, byte: u8| {
        let mut bytes = FRAME.to_vec();
        bytes[at] = byte;
        let mut scan = scan(&bytes);
        let found = scan.next().unwrap();
        assert!(found.is_ok() || scan.next().is_none());
        found.map(|frame| frame.length)
    };
    assert_eq!(with(0, b'd'), Ok(FRAME.len()));
    // Tag, message's tag, either position.
    for at in [0, 5, 6, 13, 14, 21] {
        assert!(with(at, 0xEE).is_err(), "{at}");
    }
    // A length that is negative, too large, beyond the end, too small for the header.
    for (at, byte) in [(1, 0x80), (1, 0x40), (4, 0x20), (4, 0x1C), (4, 3)] {
        assert!(with(at, byte).is_err(), "{at} {byte}");
    }
    // The shortest length.
    assert_eq!(with(4, 0x1D), Ok(FRAME_HEADER));
}

#[test]
fn a_message_that_no_server_can_send_is_not_framed() {
    // The memory is never touched, so none is used.
    let message = vec![0; MOST_MESSAGE + 1];
    let mut out = Vec::new();
    let result = put_frame(&mut out, Lsn::INVALID, Timestamp(0), &message);
    assert!(matches!(result, Err(WireError::TooLong { .. })));
    assert!(out.is_empty());
}
