//! Draws a GPU's memory slices as text.

/// An instance on a GPU: first slice, number of slices, and labels, of which the first that fits is drawn.
pub(crate) type Stand = (u32, u32, Vec<String>);

/// Columns of one slice.
const WIDTH: usize = 10;

/// Draws a GPU of `slices` memory slices with its instances.
pub(crate) fn draw(title: &str, slices: u32, stands: &[Stand]) -> String {
    let mut scale = String::new();
    let mut row = String::new();
    let mut at = 0;
    while at < slices {
        let stand = stands.iter().find(|(start, ..)| *start == at);
        let size = stand.map_or(1, |(_, size, _)| (*size).max(1));
        let width = usize::try_from(size).unwrap_or(1) * WIDTH - 2;
        let words = match stand {
            Some((_, _, words)) => words
                .iter()
                .find(|words| words.len() <= width)
                .or(words.last()),
            None => None,
        };
        let words = words.map_or(".", String::as_str);
        let (open, close) = if stand.is_some() { ('[', ']') } else { (' ', ' ') };
        row.push_str(&format!("{open}{:^width$.width$}{close}", words));
        at += size;
    }
    for slice in 0..slices {
        scale.push_str(&format!("{slice:^WIDTH$}"));
    }
    let (scale, row) = (scale.trim_end(), row.trim_end());
    format!("    {title:8}{scale}\n    {:8}{row}\n", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_stand_below_their_slices() {
        let stands = [
            (0, 4, vec!["job 1".to_owned()]),
            (6, 2, vec!["x".repeat(19), "job 2".to_owned()]),
        ];
        let drawing = draw("GPU 0", 8, &stands);
        let rows: Vec<_> = drawing.lines().collect();
        assert_eq!(rows.len(), 2);
        let left = 4 + 8;
        assert_eq!(rows[1].find('['), Some(left));
        assert_eq!(rows[1].rfind('['), Some(left + 6 * WIDTH));
        assert_eq!(rows[1].rfind(']'), Some(left + 8 * WIDTH - 1));
        assert_eq!(rows[1].matches('.').count(), 2);
        assert!(
            rows[1].contains("job 2") && !rows[1].contains('x'),
            "words that do not fit"
        );
        // Each number is in the middle of its slice's columns.
        assert_eq!(rows[0].find('6'), Some(left + 6 * WIDTH + 4));
    }
}
