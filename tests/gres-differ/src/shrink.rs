//! Shortens a request that has two readings.

use crate::gpufrac::Gpufrac;
use crate::judge::{self, Finding};
use crate::slurm::{Reader, ReaderError};
use crate::texts::{Field, Request};

/// The shortest request that still differs, and the difference; leaves out one part at a time.
/// Errors: Slurm's library cannot be called.
pub(crate) fn shrink(
    gpufrac: &Gpufrac,
    reader: &Reader,
    request: Request,
    why: String,
) -> Result<(Request, String), ReaderError> {
    let mut shortest = (request, why);
    loop {
        let judged = judge::all(gpufrac, reader, &shorter(&shortest.0))?;
        let mut different = judged
            .into_iter()
            .filter_map(|(request, finding)| match finding {
                Finding::Differs(why) => Some((request, why)),
                _ => None,
            });
        match different.next() {
            Some(shorter) => shortest = shorter,
            None => return Ok(shortest),
        }
    }
}

/// The requests without one part: the earlier request of the job, a text, an item, a byte.
fn shorter(request: &Request) -> Vec<Request> {
    let mut all = Vec::new();
    if request.before.is_some() {
        all.push(Request {
            before: None,
            ..request.clone()
        });
    }
    let mut with = |field, text| {
        let mut request = request.clone();
        request.texts.set(field, text);
        all.push(request);
    };
    for field in Field::ALL {
        let Some(text) = request.texts.get(field) else {
            continue;
        };
        with(field, None);
        let items: Vec<&[u8]> = text.split(|byte| *byte == b',').collect();
        // A text of one item is left out as a whole.
        for left_out in (0..items.len()).filter(|_| items.len() > 1) {
            let mut others = items.clone();
            others.remove(left_out);
            with(field, Some(others.join(&b","[..])));
        }
        for left_out in 0..text.len() {
            let mut text = text.to_vec();
            text.remove(left_out);
            with(field, Some(text));
        }
    }
    all
}
