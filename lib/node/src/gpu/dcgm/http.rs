//! Reads a page by HTTP/1.0 over an open connection whose peer is known. Crates for HTTP open their connections
//! themselves, so that the peer could not be checked before the request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gpufrac_core::policy::ExporterUrl;

/// The longest answer in bytes; a node's metrics are much shorter.
const MOST_ANSWER_BYTES: u64 = 4 << 20;
/// The separator between head and page.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The reasons why there is no page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Another program answers at the port.
    /// Cure: Correct `dcgm_exporter`.
    #[error("it is not an answer of HTTP/1.0")]
    NoHttp,
    /// The exporter reports an error.
    /// Cure: Follow the text.
    #[error("it says {0}")]
    Status(u16),
    /// The exporter closed the connection early.
    /// Cure: Look at the exporter's log.
    #[error("it is cut short")]
    Cut,
    // The page is longer than any node's metrics.
    /// The answer is too long.
    /// Cure: Limit the exporter's metrics.
    #[error("it does not end")]
    TooLong,
    /// The answer is binary.
    /// Cure: Correct `dcgm_exporter`.
    #[error("it is not text")]
    NoText,
}

/// Requests a page and reads the answer to its end.
pub(super) fn ask(
    stream: &mut TcpStream,
    url: &ExporterUrl,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let (path, host) = (url.path(), url.address());
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
    );
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 1 << 14];
    while answer.len() as u64 <= MOST_ANSWER_BYTES {
        // Set before each read: with a fixed timeout, a server that sends one byte a second would never end.
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend(part.iter().take(length)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// The time until the deadline; an error if it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

pub(super) fn page(answer: &[u8]) -> Result<&str, PageError> {
    if answer.len() as u64 > MOST_ANSWER_BYTES {
        return Err(PageError::TooLong);
    }
    let mut places = answer.windows(END_OF_HEAD.len());
    let end = places.position(|part| part == END_OF_HEAD);
    let (head, rest) = answer.split_at(end.ok_or(PageError::NoHttp)?);
    let page = rest.get(END_OF_HEAD.len()..).unwrap_or_default();
    let head = std::str::from_utf8(head).map_err(|_| PageError::NoHttp)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(status).ok_or(PageError::NoHttp)?;
    if status != 200 {
        return Err(PageError::Status(status));
    }
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("transfer-encoding") || is("content-encoding") {
            return Err(PageError::NoHttp);
        }
        let length: Option<u64> = value.trim().parse().ok();
        if is("content-length") && length != Some(page.len() as u64) {
            return Err(PageError::Cut);
        }
    }
    std::str::from_utf8(page).map_err(|_| PageError::NoText)
}

/// The status in the first line, `HTTP/1.1 200 OK`.
fn status(line: &str) -> Option<u16> {
    let mut words = line.split(' ');
    let is_http = words.next()?.starts_with("HTTP/1.");
    let number = words.next()?;
    let is_number = number.len() == 3 && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_http && is_number)
        .then(|| number.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_is_taken_whole() {
        for (answer, wanted) in [
            ("HTTP/1.0 200 OK\r\n\r\na 1\n", Ok("a 1\n")),
            ("HTTP/1.1 200\r\nX: y\r\n\r\na\r\n\r\nb", Ok("a\r\n\r\nb")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na 1", Ok("a 1")),
            ("HTTP/1.1 200 OK\r\nContent-Length:0\r\n\r\n", Ok("")),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1",
                Err(PageError::Cut),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na 1",
                Err(PageError::Cut),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\na 1",
                Err(PageError::Cut),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                Err(PageError::NoHttp),
            ),
            (
                "HTTP/1.1 301 Moved\r\nLocation: http://x\r\n\r\n",
                Err(PageError::Status(301)),
            ),
            ("HTTP/1.1 200 OK\r\n", Err(PageError::NoHttp)),
            ("HTTP/2 200\r\n\r\n", Err(PageError::NoHttp)),
            ("HTTP/1.1 +20 OK\r\n\r\n", Err(PageError::NoHttp)),
            ("a{} 1\n", Err(PageError::NoHttp)),
            ("", Err(PageError::NoHttp)),
        ] {
            assert_eq!(page(answer.as_bytes()), wanted, "{answer}");
        }
        let latin = b"HTTP/1.0 200 OK\r\n\r\n\xe4";
        assert_eq!(page(latin), Err(PageError::NoText));
        let endless = vec![b'a'; MOST_ANSWER_BYTES as usize + 1];
        assert_eq!(page(&endless), Err(PageError::TooLong));
    }

    proptest! {
        #[test]
        fn any_answer_is_taken_or_refused(head in "[ -~\r\n]{0,60}", body in ".{0,20}") {
            let answer = format!("HTTP/1.0 200 {head}\r\n\r\n{body}");
            if let Ok(page) = page(answer.as_bytes()) {
                prop_assert!(answer.ends_with(page));
            }
        }
    }
}
