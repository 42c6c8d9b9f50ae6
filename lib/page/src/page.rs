//! A document that is printed as text for a terminal or as a page.

use crate::chart::{Chart, Part};
use crate::html::Html;
use crate::table::{aligned, cells, columns};

/// A table of a document.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// What the table shows: a terminal has it as a line above the table.
    pub caption: String,
    pub heads: Vec<String>,
    /// Columns that are to the left: names. The others are numbers.
    pub left: usize,
    pub rows: Vec<Vec<String>>,
    /// The sums of the rows.
    pub foot: Option<Vec<String>>,
    /// Whether a terminal shows rows as columns, because heads are long and rows are few.
    pub turned: bool,
}

#[derive(Debug)]
enum Block {
    Title(String),
    Paragraph(String),
    List(Vec<String>),
    Table(Table),
    /// A table that is too long for a terminal.
    Detail(Table),
    /// A chart with its title and the meaning of its colours; a terminal does not show it.
    Chart(String, Vec<Part>, Chart),
    /// The content of a file, with its title.
    File(String, String),
}

/// A document in the making.
#[derive(Debug)]
pub struct Page {
    title: String,
    blocks: Vec<Block>,
}

impl Page {
    pub fn new(title: impl Into<String>) -> Page {
        Page {
            title: title.into(),
            blocks: Vec::new(),
        }
    }

    /// The title of a section.
    pub fn title(&mut self, title: impl Into<String>) {
        self.blocks.push(Block::Title(title.into()));
    }

    pub fn paragraph(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Paragraph(text.into()));
    }

    pub fn list(&mut self, lines: Vec<String>) {
        self.blocks.push(Block::List(lines));
    }

    pub fn table(&mut self, table: Table) {
        self.blocks.push(Block::Table(table));
    }

    /// A table that only a page has, because it is too long for a terminal.
    pub fn detail(&mut self, table: Table) {
        self.blocks.push(Block::Detail(table));
    }

    /// A chart, which only a page has: the tables have its figures.
    pub fn chart(&mut self, title: impl Into<String>, key: Vec<Part>, chart: Chart) {
        self.blocks.push(Block::Chart(title.into(), key, chart));
    }

    /// The content of a file.
    pub fn file(&mut self, title: impl Into<String>, text: impl Into<String>) {
        self.blocks.push(Block::File(title.into(), text.into()));
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        let mut lines = vec![self.title.clone()];
        let mut after_title = false;
        for block in &self.blocks {
            let block_lines = match block {
                Block::Chart(..) | Block::Detail(_) => continue,
                Block::Title(text) | Block::Paragraph(text) => vec![text.clone()],
                Block::List(items) => items.iter().map(|item| format!("  {item}")).collect(),
                Block::Table(table) => table.lines(),
                Block::File(title, text) => {
                    let title = format!("# {title}");
                    [title.as_str()]
                        .into_iter()
                        .chain(text.lines())
                        .map(str::to_owned)
                        .collect()
                }
            };
            if !std::mem::replace(&mut after_title, matches!(block, Block::Title(_))) {
                lines.push(String::new());
            }
            lines.extend(block_lines);
        }
        lines.join("\n") + "\n"
    }

    /// As a page.
    pub fn html(&self) -> String {
        let mut page = Html::new(&self.title, |_| {});
        for block in &self.blocks {
            match block {
                Block::Title(title) => page.title(title),
                Block::Paragraph(text) => page.paragraph(text),
                Block::List(items) => {
                    page.raw("<ul>\n");
                    for item in items {
                        page.raw("<li>").text(item).raw("</li>\n");
                    }
                    page.raw("</ul>\n");
                }
                Block::Table(table) | Block::Detail(table) => table.draw(&mut page),
                Block::Chart(title, key, chart) => {
                    page.raw("<figure><figcaption>").text(title);
                    page.raw("</figcaption>");
                    if !key.is_empty() {
                        page.key(key.iter().map(|(colour, words)| (*colour, words)));
                    }
                    chart.draw(
                        &mut page,
                        &format!("{title}; the table has the same figures"),
                    );
                    page.raw("</figure>\n");
                }
                Block::File(title, text) => {
                    page.title(title);
                    page.raw("<pre>").text(text).raw("</pre>\n");
                }
            }
        }
        page.end()
    }
}

impl Table {
    /// `heads`: [`cells`] of a fixed text.
    pub fn new(
        caption: impl Into<String>,
        heads: &str,
        left: usize,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Table {
        Table {
            caption: caption.into(),
            heads: cells(heads),
            left,
            rows: rows.into_iter().collect(),
            ..Table::default()
        }
    }

    fn lines(&self) -> Vec<String> {
        let rows = std::iter::once(&self.heads)
            .chain(&self.rows)
            .chain(&self.foot);
        let rows: Vec<Vec<String>> = rows.cloned().collect();
        let mut lines = vec![self.caption.clone()];
        if self.turned {
            let column = |at: usize| rows.iter().filter_map(|row| row.get(at).cloned()).collect();
            let turned: Vec<Vec<String>> = (0..self.heads.len()).map(column).collect();
            lines.extend(columns(&turned));
        } else {
            lines.extend(aligned(&rows, self.left));
        }
        lines
    }

    fn draw(&self, page: &mut Html) {
        let cells = |row: &Vec<String>| row.iter().map(|cell| cell.as_str().into()).collect();
        let rows = self.rows.iter().map(cells);
        page.table(
            &self.caption,
            &self.heads,
            self.left,
            rows,
            self.foot.as_ref().map(cells),
        );
    }
}
