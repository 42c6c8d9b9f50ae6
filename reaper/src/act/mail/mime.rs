//! A mail message in MIME.

use std::time::SystemTime;

use gpufrac_core::policy::Mail;
use gpufrac_page::words::plain;
use lettre::message::header::{
    self, ContentTransferEncoding, ContentType, Date, HeaderName, HeaderValue,
};
use lettre::message::{Attachment, Body, MultiPart, SinglePart};

use super::Message;

/// The whole message in the form that sendmail reads. Without a configured sender the mail program adds its own.
pub(super) fn mime(mail: &Mail, message: &Message) -> Vec<u8> {
    let mut parts = MultiPart::mixed().singlepart(SinglePart::plain(message.text.clone()));
    if let Some(chart) = &message.chart_svg {
        parts = parts.singlepart(picture(chart));
    }
    let headers = parts.headers_mut();
    headers.set(header::MIME_VERSION_1_0);
    headers.set(Date::new(SystemTime::now()));
    let mut put = |name: &'static str, value: String| {
        let name = HeaderName::new_from_ascii_str(name);
        headers.insert_raw(HeaderValue::new(name, plain(&value)));
    };
    if let Some(from) = &mail.from {
        put("From", from.clone());
    }
    put("To", message.to.join(", "));
    put("Subject", message.subject.clone());
    // No automatic replies (RFC 3834).
    put("Auto-Submitted", "auto-generated".to_owned());
    lines(&parts.formatted())
}

/// Line ends as in files, which all such programs accept. Bodies are text only.
fn lines(text: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_suffix(b"\r\n") {
            Some(whole) => {
                lines.extend_from_slice(whole);
                lines.push(b'\n');
            }
            None => lines.extend_from_slice(line),
        }
    }
    lines
}

fn picture(chart: &str) -> SinglePart {
    let name = Attachment::new("chart.svg".to_owned());
    let kind = ContentType::parse("image/svg+xml").unwrap_or(ContentType::TEXT_PLAIN);
    let bytes = chart.as_bytes().to_vec();
    match Body::new_with_encoding(bytes, ContentTransferEncoding::Base64) {
        Ok(body) => name.body(body, kind),
        // Base64 can encode any text.
        Err(text) => name.body(text, kind),
    }
}
