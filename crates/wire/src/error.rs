//! What can be wrong with bytes from the other side.

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, WireError>;

/// Bytes or text that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends before its content does.
    #[error("a message ends too early: {0}")]
    Truncated(&'static str),
    /// A length beyond what the reader is ready to take.
    #[error("a message of {length} bytes is longer than {limit}")]
    TooLong {
        /// What the message says.
        length: usize,
        /// What is allowed.
        limit: usize,
    },
    /// A length that cannot be: shorter than itself, or negative.
    #[error("a message has the impossible length {0}")]
    BadLength(i32),
    /// Content that makes no sense.
    #[error("a message makes no sense: {0}")]
    Malformed(&'static str),
    /// A message that this side does not know.
    #[error("unknown message type {0:#04x}")]
    UnknownMessage(u8),
    /// Text that is not what it should be.
    #[error("\"{text}\" is not {what}")]
    Text {
        /// What it should be.
        what: &'static str,
        /// The text, shortened.
        text: String,
    },
}

/// Longest piece of foreign text in an error.
const MOST_TEXT: usize = 100;

impl WireError {
    pub(crate) fn text(what: &'static str, text: &str) -> Self {
        Self::Text {
            what,
            text: text.chars().take(MOST_TEXT).collect(),
        }
    }
}
