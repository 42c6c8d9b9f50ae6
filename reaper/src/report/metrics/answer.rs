//! Answers to HTTP requests.

use std::io::Cursor;
use std::str;

use tiny_http::{HTTPVersion, Header, Method, Response, StatusCode};

use super::client::Request;
use super::text;

const PATH: &str = "/metrics";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The whole answer; `metrics` is only called for a request of the metrics.
pub(super) fn to(request: Request<'_>, metrics: impl FnOnce() -> String) -> Vec<u8> {
    let Request::Whole(head) = request else {
        return Answer::said(431, "the request is too long").bytes(false);
    };
    match first_line(head) {
        None => Answer::said(400, "this is no request of HTTP").bytes(false),
        Some((Method::Get, PATH)) => Answer::metrics(metrics()).bytes(false),
        Some((Method::Head, PATH)) => Answer::metrics(metrics()).bytes(true),
        Some((method @ (Method::Get | Method::Head), _)) => {
            let hint = format!("the metrics of gpufrac-reaperd are at {PATH}");
            Answer::said(404, &hint).bytes(method == Method::Head)
        }
        Some((method, _)) => {
            let mut answer = Answer::said(405, &format!("{method} does nothing here"));
            answer.headers.push(("Allow", "GET, HEAD"));
            answer.bytes(false)
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

struct Answer {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
}

impl Answer {
    fn metrics(body: String) -> Answer {
        Answer {
            status: 200,
            headers: vec![("Content-Type", text::CONTENT_TYPE)],
            body,
        }
    }

    fn said(status: u16, what: &str) -> Answer {
        Answer {
            status,
            headers: vec![("Content-Type", PLAIN)],
            body: format!("{what}\n"),
        }
    }

    fn bytes(self, without_body: bool) -> Vec<u8> {
        let headers = self.headers.into_iter();
        let headers = headers.filter_map(|(name, value)| Header::from_bytes(name, value).ok());
        let length = self.body.len();
        let response = Response::new(
            StatusCode(self.status),
            headers.collect(),
            Cursor::new(self.body),
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
}
