//! Answers to HTTP requests.

use std::io::Cursor;
use std::str;

use tiny_http::{HTTPVersion, Header, Method, Response, StatusCode};

use super::text;

const PATH: &str = "/metrics";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The whole answer to a request; None is one that is too long. `metrics` is only called for a request of the metrics.
pub(super) fn to(request: Option<&[u8]>, metrics: impl FnOnce() -> String) -> Vec<u8> {
    let plain = ("Content-Type", PLAIN);
    let Some(head) = request else {
        return bytes(431, &[plain], "the request is too long\n".to_owned(), false);
    };
    match first_line(head) {
        None => bytes(
            400,
            &[plain],
            "this is no request of HTTP\n".to_owned(),
            false,
        ),
        Some((method @ (Method::Get | Method::Head), PATH)) => {
            let headers = [("Content-Type", text::CONTENT_TYPE)];
            bytes(200, &headers, metrics(), method == Method::Head)
        }
        Some((method @ (Method::Get | Method::Head), _)) => {
            let hint = format!("the metrics of gpufrac-reaperd are at {PATH}\n");
            bytes(404, &[plain], hint, method == Method::Head)
        }
        Some((method, _)) => {
            let headers = [plain, ("Allow", "GET, HEAD")];
            bytes(
                405,
                &headers,
                format!("{method} does nothing here\n"),
                false,
            )
        }
    }
}

/// Method and path of a request. The answer does not depend on the headers.
fn first_line(head: &[u8]) -> Option<(Method, &str)> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let mut words = str::from_utf8(line).ok()?.trim_end().split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if !version.starts_with("HTTP/1.") || words.next().is_some() {
        return None;
    }
    let path = target.split('?').next()?;
    Some((method.parse().ok()?, path))
}

fn bytes(status: u16, headers: &[(&str, &str)], body: String, without_body: bool) -> Vec<u8> {
    let headers = headers.iter();
    let headers = headers.filter_map(|(name, value)| Header::from_bytes(*name, *value).ok());
    let length = body.len();
    let response = Response::new(
        StatusCode(status),
        headers.collect(),
        Cursor::new(body),
        Some(length),
        None,
    );
    let mut bytes = Vec::new();
    // An answer by HTTP/1.0 ends with its connection.
    let version = HTTPVersion(1, 0);
    match response.raw_print(&mut bytes, version, &[], without_body, None) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}
