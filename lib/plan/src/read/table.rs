//! Tables that Slurm's commands print with `-P`. The header says which columns there are; a row is as long as it.

use std::io::Read;
use std::str::FromStr;

use csv::ByteRecord;

/// The rows of a table: no quotes, and rows of any number of columns.
pub fn rows<R: Read>(source: R) -> csv::Reader<R> {
    csv::ReaderBuilder::new()
        .delimiter(b'|')
        .quoting(false)
        .flexible(true)
        .has_headers(false)
        .from_reader(source)
}

/// The names of columns. Large and small letters are the same.
pub struct Header(Vec<String>);

impl Header {
    pub fn of(row: &ByteRecord) -> Header {
        let names = row.iter().map(String::from_utf8_lossy);
        Header(names.map(|name| name.trim().to_owned()).collect())
    }

    /// The names of a list with commas.
    pub fn of_list(list: &str) -> Header {
        Header(list.split(',').map(|name| name.trim().to_owned()).collect())
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
}

/// A row with the names of its fields. A field may have another name in other versions.
pub struct Row<'a> {
    header: &'a Header,
    row: &'a ByteRecord,
}

impl<'a> Row<'a> {
    pub fn of(header: &'a Header, row: &'a ByteRecord) -> Result<Row<'a>, String> {
        let (has, wanted) = (row.len(), header.0.len());
        if has == wanted {
            Ok(Row { header, row })
        } else {
            Err(format!("the row has {has} fields instead of {wanted}"))
        }
    }

    /// The text of a field; empty where it is missing.
    pub fn text(&self, names: &[&str]) -> Result<&'a str, String> {
        let column = self.header.column(names);
        let bytes = column.and_then(|at| self.row.get(at)).unwrap_or_default();
        std::str::from_utf8(bytes)
            .map(str::trim)
            .map_err(|_| "a field is no UTF-8".to_owned())
    }

    /// None where the field is missing or empty.
    pub fn number<T: FromStr>(&self, names: &[&str]) -> Result<Option<T>, String> {
        match self.text(names)? {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| wrong(names[0], text)),
        }
    }
}

/// Why a field cannot be read.
pub fn wrong(name: &str, text: &str) -> String {
    format!("{name} is `{text}`")
}
