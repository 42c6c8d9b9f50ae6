//! Job summaries in the form of [jobstats](https://github.com/PrincetonUniversity/jobstats), which jobstats itself,
//! reportseff and job_defense_shield read from `AdminComment`: `JS1:`, then JSON, compressed by gzip, in base64.

use std::io::{Read, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How a summary begins.
pub const HEAD: &str = "JS1:";
/// No summary is larger when it is decompressed.
const MOST_BYTES: u64 = 1 << 22;

/// A summary as a comment.
pub fn pack(summary: &impl Serialize) -> Option<String> {
    let json = serde_json::to_vec(summary).ok()?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&json).ok()?;
    let packed = packed.finish().ok()?;
    Some(format!("{HEAD}{}", BASE64_STANDARD.encode(packed)))
}

/// The summary in a comment; None where the comment is another text.
pub fn unpack<T: DeserializeOwned>(comment: &str) -> Option<T> {
    let packed = BASE64_STANDARD.decode(comment.strip_prefix(HEAD)?).ok()?;
    let mut json = Vec::new();
    let reader = GzDecoder::new(packed.as_slice());
    reader.take(MOST_BYTES).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}
