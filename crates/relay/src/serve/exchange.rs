//! Where a session of the primary stands: followed message by message, without any I/O.
//!
//! A simple query may be answered by the relay only while the primary has nothing to
//! say: every `ReadyForQuery` that was earned has come, and the last said that no
//! transaction is open. What earns one is what a walsender does: a query, a function
//! call (refused, but answered) and a Sync. The extended protocol is refused there, after
//! which everything up to the next Sync is thrown away.

use lockstep_wire::frame::{self, HEADER};

use super::frames::MOST;

/// Outside of a transaction block, and in one that has failed.
const OUTSIDE: u8 = b'I';
const FAILED: u8 = b'E';

/// Splits bytes into messages, wherever they are cut.
#[derive(Debug, Default)]
pub(super) struct Cut {
    head: [u8; HEADER],
    /// Bytes of the header that are there.
    have: usize,
    /// Bytes of the body that are still to come.
    left: usize,
    /// The message's first byte of content has not been seen.
    fresh: bool,
    /// What came makes no sense: nothing is known from there on.
    lost: bool,
}

impl Cut {
    /// Whether the stream was cut between two messages.
    pub fn at_boundary(&self) -> bool {
        !self.lost && self.have == 0
    }

    /// What came made no sense.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Takes the next bytes. `seen` is called for each message once, with its tag and
    /// the first byte of its content if it has any.
    pub fn advance(&mut self, mut bytes: &[u8], mut seen: impl FnMut(u8, Option<u8>)) {
        while !self.lost && !bytes.is_empty() {
            if self.have < HEADER {
                bytes = self.take_header(bytes);
                if self.have == HEADER && self.left == 0 && !self.lost {
                    seen(self.tag(), None);
                    self.have = 0;
                }
                continue;
            }
            if std::mem::take(&mut self.fresh) {
                seen(self.tag(), bytes.first().copied());
            }
            let taken = self.left.min(bytes.len());
            self.left -= taken;
            bytes = bytes.get(taken..).unwrap_or_default();
            if self.left == 0 {
                self.have = 0;
            }
        }
    }

    /// Takes bytes up to the end of the message that is under way; how many.
    pub fn finish(&mut self, bytes: &[u8], mut seen: impl FnMut(u8, Option<u8>)) -> usize {
        let mut taken = 0;
        while let Some(left) = bytes.get(taken..).filter(|left| !left.is_empty()) {
            if self.lost || self.have == 0 {
                break;
            }
            let length = match self.have < HEADER {
                true => 1,
                false => self.left.min(left.len()),
            };
            self.advance(left.get(..length).unwrap_or_default(), &mut seen);
            taken += length;
        }
        taken
    }

    fn tag(&self) -> u8 {
        let [tag, ..] = self.head;
        tag
    }

    fn take_header<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let wanted = self.head.get_mut(self.have..).unwrap_or_default();
        let taken = wanted.len().min(bytes.len());
        let (head, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
        for (place, byte) in wanted.iter_mut().zip(head) {
            *place = *byte;
        }
        self.have += taken;
        if self.have == HEADER {
            match frame::header(self.head, MOST) {
                Ok((_, length)) => {
                    self.left = length;
                    self.fresh = length > 0;
                }
                Err(_) => self.lost = true,
            }
        }
        rest
    }
}

/// What the two sides owe each other.
#[derive(Debug)]
pub(super) struct Exchange {
    /// `ReadyForQuery` messages that were earned and have not come.
    owed: u64,
    /// What the last one said.
    status: u8,
    /// The primary throws away what comes before the next Sync.
    ignoring: bool,
    /// More came than was earned: whatever this is, it is not what we know.
    lost: bool,
}

impl Exchange {
    /// After the first `ReadyForQuery`.
    pub fn begun() -> Self {
        Self {
            owed: 0,
            status: OUTSIDE,
            ignoring: false,
            lost: false,
        }
    }

    /// Nothing is under way and no transaction is open.
    pub fn is_idle(&self) -> bool {
        self.owed == 0 && self.status == OUTSIDE && !self.ignoring && !self.lost
    }

    /// Nothing is under way, and no transaction has failed.
    pub fn is_between(&self) -> bool {
        self.owed == 0 && self.status != FAILED && !self.ignoring && !self.lost
    }

    /// The client's message goes to the primary.
    pub fn asked(&mut self, tag: u8) {
        match tag {
            b'S' => {
                self.ignoring = false;
                self.owed += 1;
            }
            b'Q' | b'F' if !self.ignoring => self.owed += 1,
            b'P' | b'B' | b'E' | b'D' | b'C' => self.ignoring = true,
            _ => {}
        }
    }

    /// The primary's message goes to the client; `content` is its first byte.
    pub fn answered(&mut self, tag: u8, content: Option<u8>) {
        if tag != b'Z' {
            return;
        }
        self.status = content.unwrap_or_default();
        match self.owed.checked_sub(1) {
            Some(owed) => self.owed = owed,
            None => self.lost = true,
        }
    }

    /// Nothing can be known any more.
    pub fn lose(&mut self) {
        self.lost = true;
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::frame::put;

    use super::*;

    /// Cuts `bytes` into pieces of `size` and lists what is seen.
    fn cut(bytes: &[u8], size: usize) -> (Vec<(u8, Option<u8>)>, Cut) {
        let mut cut = Cut::default();
        let mut seen = Vec::new();
        for piece in bytes.chunks(size) {
            cut.advance(piece, |tag, content| seen.push((tag, content)));
        }
        (seen, cut)
    }

    #[test]
    fn messages_are_seen_wherever_they_are_cut() {
        let mut bytes = Vec::new();
        put(&mut bytes, b'Z', |out| out.push(b'T'));
        put(&mut bytes, b'c', |_| {});
        put(&mut bytes, b'd', |out| out.extend([7; 300]));
        put(&mut bytes, b'Z', |out| out.push(b'I'));
        let all = [
            (b'Z', Some(b'T')),
            (b'c', None),
            (b'd', Some(7)),
            (b'Z', Some(b'I')),
        ];
        for begun in 0..bytes.len() {
            let (mut seen, mut cut) = cut(&bytes[..begun], 1000);
            let at_boundary = cut.at_boundary();
            let taken = cut.finish(&bytes[begun..], |tag, content| seen.push((tag, content)));
            assert!(cut.at_boundary());
            assert_eq!(taken == 0, at_boundary);
            assert_eq!(seen[..], all[..seen.len()]);
        }
        for size in 1..=bytes.len() {
            let (seen, cut) = cut(&bytes, size);
            assert_eq!(seen, all);
            assert!(cut.at_boundary() && !cut.is_lost());
        }
        for end in 1..bytes.len() {
            let boundary = [6, 11, 316].contains(&end);
            assert_eq!(cut(&bytes[..end], 1).1.at_boundary(), boundary, "{end}");
        }
    }

    #[test]
    fn nonsense_is_never_a_boundary() {
        let (seen, cut) = cut(b"Z\0\0\0\x05IQ\0\0\0\x03Z\0\0\0\x05I", 4);
        assert_eq!(seen, [(b'Z', Some(b'I'))]);
        assert!(cut.is_lost() && !cut.at_boundary());
    }

    /// One side's messages, `>` the client's and `<` a `ReadyForQuery`; idle afterwards?
    #[test]
    fn a_session_is_idle_only_between_queries_and_outside_of_transactions() {
        for (messages, idle) in [
            ("", true),
            (">Q", false),
            (">Q <I", true),
            (">Q <T", false),
            (">Q <T >Q <I", true),
            (">Q >Q <I", false),
            (">Q >Q <I <I", true),
            (">Q >d >c <I", true),
            (">F <I", true),
            (">S <I", true),
            // Refused, thrown away up to the Sync.
            (">P", false),
            (">P >B >Q >E >S", false),
            (">P >B >Q >E >S <I", true),
            (">H", true),
            // More than was earned.
            ("<I", false),
            (">Q <I <I >Q <I", false),
        ] {
            let mut exchange = Exchange::begun();
            for message in messages.split_whitespace() {
                let (side, tag) = message.split_at(1);
                let tag = tag.as_bytes()[0];
                match side {
                    ">" => exchange.asked(tag),
                    _ => exchange.answered(b'Z', Some(tag)),
                }
            }
            assert_eq!(exchange.is_idle(), idle, "{messages}");
        }
        let mut exchange = Exchange::begun();
        exchange.lose();
        assert!(!exchange.is_idle());
    }
}
