//! Rows of Markdown tables.

/// The cells of a row; None if the line is not a row.
pub(super) fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells = row.replace("\\|", "\u{1}");
    Some(
        cells
            .split(" | ")
            .map(|cell| cell.replace('\u{1}', "|"))
            .collect(),
    )
}

pub(super) fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | "))
}

pub(super) fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// The text of a cell of code.
pub(super) fn text(cell: &str) -> &str {
    let double = cell
        .strip_prefix("`` ")
        .and_then(|cell| cell.strip_suffix(" ``"));
    double.unwrap_or_else(|| cell.trim_matches('`'))
}
