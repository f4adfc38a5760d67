//! Checks of a proxy, answered without a whole server of HTTP.
//!
//! A proxy asks each node several times a second, always with the same few bytes and each time in a new
//! connection: OPTIONS, HTTP/1.0, and no header that says anything. Of such a request only the status counts.
//! No browser sends one, since it names no host. All others are left to the server.

use std::io::Cursor;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Chain, Join, ReadHalf, WriteHalf, join,
    split,
};
use tokio::time::timeout;

/// The status of the answer to a path with its query; None if the server has to answer.
pub type Checks = Box<dyn Fn(&str) -> Option<u16> + Send + Sync>;

/// A stream of which some was read.
pub type Rest<S> = Join<Chain<Cursor<Vec<u8>>, ReadHalf<S>>, WriteHalf<S>>;

/// Longest check, in bytes.
const LONGEST: usize = 256;

/// Answers a check. Otherwise returns the stream, with what was read of it; None if nothing came in time.
pub async fn answer<S>(mut stream: S, checks: &Checks, patience: Duration) -> Option<Rest<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut bytes = [0; LONGEST];
    let length = match timeout(patience, stream.read(&mut bytes)).await {
        Ok(Ok(length)) if length > 0 => length,
        _ => return None,
    };
    let head = bytes.get(..length)?;
    let Some(status) = asked(head).and_then(checks) else {
        let (rest, writer) = split(stream);
        return Some(join(Cursor::new(head.to_vec()).chain(rest), writer));
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let text = format!("HTTP/1.0 {status}\r\ncontent-length: 0\r\n\r\n");
    // Whoever has gone needs no answer. All of the request was read, so the end comes after the answer.
    let _ = stream.write_all(text.as_bytes()).await;
    None
}

/// The path with its query of a request that is a whole check.
fn asked(request: &[u8]) -> Option<&str> {
    let head = std::str::from_utf8(request).ok()?;
    let mut lines = head.strip_suffix("\r\n\r\n")?.split("\r\n");
    let asked = lines.next()?.strip_prefix("OPTIONS ")?;
    let path = asked.strip_suffix(" HTTP/1.0")?;
    let is_plain = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    let says_nothing = |line: &str| line.eq_ignore_ascii_case("connection: close");
    (is_plain && lines.all(says_nothing)).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_checks_are_taken_for_some() {
        for (request, expected) in [
            ("OPTIONS /a HTTP/1.0\r\n\r\n", Some("/a")),
            (
                "OPTIONS /a?b=c HTTP/1.0\r\nConnection: close\r\n\r\n",
                Some("/a?b=c"),
            ),
            ("OPTIONS /a HTTP/1.0\r\n", None),
            ("OPTIONS /a HTTP/1.0\r\n\r\nx", None),
            (
                "OPTIONS /a HTTP/1.0\r\n\r\nOPTIONS /a HTTP/1.0\r\n\r\n",
                None,
            ),
            ("OPTIONS /a HTTP/1.0\r\nHost: x\r\n\r\n", None),
            (
                "OPTIONS /a HTTP/1.0\r\nAuthorization: Basic YTpi\r\n\r\n",
                None,
            ),
            ("OPTIONS /a HTTP/1.1\r\n\r\n", None),
            ("OPTIONS http://x/a HTTP/1.0\r\n\r\n", None),
            ("OPTIONS /a b HTTP/1.0\r\n\r\n", None),
            ("OPTIONS * HTTP/1.0\r\n\r\n", None),
            ("GET /a HTTP/1.0\r\n\r\n", None),
            ("\r\n\r\n", None),
            ("", None),
        ] {
            assert_eq!(asked(request.as_bytes()), expected, "{request:?}");
        }
        assert_eq!(asked(b"OPTIONS /\xff HTTP/1.0\r\n\r\n"), None);
    }

    fn checks() -> Checks {
        Box::new(|path| (path == "/in").then_some(404))
    }

    #[tokio::test]
    async fn a_check_gets_its_status() {
        let (mut client, server) = tokio::io::duplex(1024);
        let request = b"OPTIONS /in HTTP/1.0\r\n\r\n";
        client.write_all(request).await.unwrap();
        let left = answer(server, &checks(), Duration::from_secs(60)).await;
        assert!(left.is_none());
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        let expected = "HTTP/1.0 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(text, expected);
    }

    #[tokio::test]
    async fn what_is_no_check_is_left_to_the_server() {
        for request in ["OPTIONS /out HTTP/1.0\r\n\r\n", "GET /in HT"] {
            let (mut client, server) = tokio::io::duplex(1024);
            client.write_all(request.as_bytes()).await.unwrap();
            let left = answer(server, &checks(), Duration::from_secs(60)).await;
            let mut left = left.unwrap();
            client.write_all(b"more").await.unwrap();
            client.shutdown().await.unwrap();
            let mut text = String::new();
            left.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, format!("{request}more"));
            left.write_all(b"said").await.unwrap();
            drop(left);
            let mut said = String::new();
            client.read_to_string(&mut said).await.unwrap();
            assert_eq!(said, "said");
        }
        // Who says nothing is not waited for.
        let (_silent, server) = tokio::io::duplex(1024);
        let left = answer(server, &checks(), Duration::from_millis(1)).await;
        assert!(left.is_none());
    }
}
