//! What can be wrong with bytes from the other end of a connection.

pub type Result<T> = std::result::Result<T, WireError>;

/// Bytes or text that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends before its content does.
    #[error("a message ends too early: {0}")]
    Truncated(&'static str),
    #[error("a message of {length} bytes is longer than {limit}")]
    TooLong {
        /// The length that the message states.
        length: usize,
        /// What the reader accepts.
        limit: usize,
    },
    /// The length is negative, or shorter than itself.
    #[error("a message has the impossible length {0}")]
    BadLength(i32),
    #[error("a message is malformed: {0}")]
    Malformed(&'static str),
    /// The tag of a message that this crate does not know.
    #[error("unknown message type {0:#04x}")]
    UnknownMessage(u8),
    #[error("\"{text}\" is not {what}")]
    Text {
        /// What the text should be.
        what: &'static str,
        /// Shortened to [`MOST_TEXT`] characters.
        text: String,
    },
}

/// Longest text of the other end in an error.
const MOST_TEXT: usize = 100;

impl WireError {
    pub(crate) fn text(what: &'static str, text: &str) -> Self {
        Self::Text {
            what,
            text: text.chars().take(MOST_TEXT).collect(),
        }
    }
}
