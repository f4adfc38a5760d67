//! The frame of every message but a client's first: a tag of one byte, then a length of four
//! bytes. The length counts itself and the body, but not the tag.

use crate::{Result, WireError};

/// Bytes before the body: tag and length.
pub const HEADER: usize = 5;

/// Most bytes of a body that a server must accept from a client of physical replication, which
/// sends commands and feedback.
pub const FRONTEND_LIMIT: usize = 64 * 1024;

/// Most bytes of a body that a client of physical replication must accept: a walsender sends
/// 128 kB of WAL in one message, and a timeline's history is short.
pub const BACKEND_LIMIT: usize = 1024 * 1024;

/// Most bytes of a body that a client of logical replication must accept: the largest that a
/// server can build in memory (its `MaxAllocSize`, 1 GB less one byte).
pub const LOGICAL_LIMIT: usize = (1 << 30) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind of message.
    pub tag: u8,
    pub body: &'a [u8],
}

/// Reads the tag and the length of the body from a message's first bytes.
pub fn header(bytes: [u8; HEADER], limit: usize) -> Result<(u8, usize)> {
    let [tag, a, b, c, d] = bytes;
    Ok((tag, body_length(i32::from_be_bytes([a, b, c, d]), limit)?))
}

/// The length of a body, from a length that counts itself.
pub(crate) fn body_length(length: i32, limit: usize) -> Result<usize> {
    let body = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_sub(4))
        .ok_or(WireError::BadLength(length))?;
    match body <= limit {
        true => Ok(body),
        false => Err(WireError::TooLong {
            length: body,
            limit,
        }),
    }
}

/// The first message in `bytes` and how many bytes it takes; None if it is not whole yet.
pub fn first(bytes: &[u8], limit: usize) -> Result<Option<(Frame<'_>, usize)>> {
    let Some((&head, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let (tag, length) = header(head, limit)?;
    Ok(rest
        .get(..length)
        .map(|body| (Frame { tag, body }, HEADER + length)))
}

/// Appends a message; `body` appends its content.
pub fn put(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    put_counted(out, body);
}

/// Appends a length that counts itself, and what `body` appends.
pub(crate) fn put_counted(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 4]);
    body(out);
    // What is encoded here is far below 2 GB: callers have their own limits.
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_once_it_is_whole() {
        let mut bytes = Vec::new();
        put(&mut bytes, b'Q', |out| out.extend(b"abc"));
        put(&mut bytes, b'X', |_| {});
        for length in 0..HEADER + 3 {
            assert_eq!(first(&bytes[..length], 10), Ok(None));
        }
        let (frame, used) = first(&bytes, 10).unwrap().unwrap();
        assert_eq!((frame.tag, frame.body), (b'Q', &b"abc"[..]));
        let (frame, end) = first(&bytes[used..], 10).unwrap().unwrap();
        assert_eq!((frame.tag, frame.body), (b'X', &b""[..]));
        assert_eq!(used + end, bytes.len());
    }

    #[test]
    fn lengths_are_checked_before_anything_is_read() {
        let head = |length: i32| {
            let [a, b, c, d] = length.to_be_bytes();
            [b'd', a, b, c, d]
        };
        assert_eq!(header(head(14), 10), Ok((b'd', 10)));
        assert!(matches!(
            header(head(15), 10),
            Err(WireError::TooLong {
                length: 11,
                limit: 10
            })
        ));
        for length in [i32::MIN, -1, 0, 3] {
            assert_eq!(header(head(length), 10), Err(WireError::BadLength(length)));
        }
        assert!(header(head(i32::MAX), BACKEND_LIMIT).is_err());
    }
}
