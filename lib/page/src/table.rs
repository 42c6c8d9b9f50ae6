//! Tables for a terminal.

/// Rows with columns as wide as their widest cell: the first `left` of them to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>], left: usize) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| {
            if column < left {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// [`aligned`] with all columns to the left.
pub fn columns(rows: &[Vec<String>]) -> Vec<String> {
    aligned(rows, usize::MAX)
}

/// Cells of a fixed text, such as the heads of a table: `node|GPU|GPU-hours`.
pub fn cells(text: &str) -> Vec<String> {
    text.split('|').map(str::to_owned).collect()
}
