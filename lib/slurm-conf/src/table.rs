//! Tables that sacct and sacctmgr print with `-P`: columns by name, and values by their kind.

use std::str::FromStr;

use crate::value;

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// A row of sacct is cut, or a name in it has a `|`.
    /// Cure: See the row above.
    #[error("the row has {found} fields instead of {wanted}")]
    Fields { found: usize, wanted: usize },
    /// A name in a row of sacct has another encoding.
    /// Cure: See the row above.
    #[error("a field is no UTF-8")]
    Encoding,
    /// A field of a row of sacct is not a number or not a time.
    /// Cure: See the row above.
    #[error("{name} is `{text}`")]
    Value { name: String, text: String },
}

/// A value has another form.
pub fn wrong(name: &str, text: &str) -> RowError {
    let (name, text) = (name.to_owned(), text.to_owned());
    RowError::Value { name, text }
}

/// The names of columns. Large and small letters are the same.
pub struct Header(Vec<String>);

impl Header {
    /// The names of a line of a table, or of a list with commas.
    pub fn of(names: &str) -> Header {
        let names = names.split(['|', ',']);
        Header(names.map(|name| name.trim().to_owned()).collect())
    }

    /// The column with the first of these names that is there.
    fn column(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| {
            let is_named = |own: &String| own.eq_ignore_ascii_case(name);
            self.0.iter().position(is_named)
        })
    }

    pub fn has(&self, names: &[&str]) -> bool {
        self.column(names).is_some()
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.0.len()
    }

    /// The place of the one column that has one of these names; None where none or several have.
    pub fn only(&self, names: &[&str]) -> Option<usize> {
        let is_named = |own: &String| names.iter().any(|name| own.eq_ignore_ascii_case(name));
        let mut found = (0..self.0.len()).filter(|&at| is_named(&self.0[at]));
        found.next().filter(|_| found.next().is_none())
    }

    /// The row of these fields. Errors: when it is not as long as the header.
    pub fn row<'a>(&'a self, fields: impl Iterator<Item = &'a [u8]>) -> Result<Row<'a>, RowError> {
        let fields: Vec<&[u8]> = fields.collect();
        let (found, wanted) = (fields.len(), self.0.len());
        let header = self;
        let row = Row { header, fields };
        if found == wanted { Ok(row) } else { Err(RowError::Fields { found, wanted }) }
    }

    /// The row of a line. Errors: as [`Header::row`].
    pub fn line<'a>(&'a self, line: &'a str) -> Result<Row<'a>, RowError> {
        self.row(line.split('|').map(str::as_bytes))
    }

    /// The row of a line, whose last field may contain any character. Errors: as [`Header::row`].
    pub fn open_line<'a>(&'a self, line: &'a str) -> Result<Row<'a>, RowError> {
        self.row(line.splitn(self.0.len(), '|').map(str::as_bytes))
    }
}

/// A row with the names of its fields. A field may have another name in other versions.
pub struct Row<'a> {
    header: &'a Header,
    fields: Vec<&'a [u8]>,
}

impl<'a> Row<'a> {
    /// The text of a field; empty where it is missing. Errors: when it is no UTF-8.
    pub fn text(&self, names: &[&str]) -> Result<&'a str, RowError> {
        let column = self.header.column(names);
        let bytes = column.map_or(&b""[..], |at| self.fields[at]);
        let text = std::str::from_utf8(bytes).map_err(|_| RowError::Encoding)?;
        Ok(text.trim())
    }

    /// None where the field is missing or empty. Errors: when it is another text.
    pub fn number<T: FromStr>(&self, names: &[&str]) -> Result<Option<T>, RowError> {
        match self.text(names)? {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| wrong(names[0], text)),
        }
    }

    /// A number that each row has. Errors: when the field is another text.
    pub fn needed<T: FromStr>(&self, name: &str) -> Result<T, RowError> {
        let text = self.text(&[name])?;
        text.parse().map_err(|_| wrong(name, text))
    }

    /// None where there is no time yet. Errors: when the field is another text.
    pub fn time(&self, name: &str) -> Result<Option<u64>, RowError> {
        let text = self.text(&[name])?;
        value::time(text).map_err(|_| wrong(name, text))
    }
}
