//! Writes pages. Markup is fixed in this program (`&'static str`); every other text is escaped.

use std::fmt::Display;

use crate::words::is_odd;

/// Colours are variables, once for light and once for dark screens; the test of contrasts reads them from here.
pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--pale:#57606a;--line:#d0d7de;--paper:#ffffff;--link:#0550ae;\
--busy:#1a7f37;--idle:#9a6700;--warned:#cf222e;--unknown:#6e7781;--changing:#0969da;--free:#e4e8ec;\
--out:repeating-linear-gradient(135deg,var(--free) 0 4px,var(--unknown) 4px 6px)}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--pale:#9da7b1;--line:#3d444d;--paper:#0d1117;--link:#79c0ff;\
--busy:#3fb950;--idle:#d29922;--warned:#f85149;--unknown:#8b949e;--changing:#58a6ff;--free:#262c36}}\
*{box-sizing:border-box}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:80rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}\
h1{font-size:1.5rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}\
a{color:var(--link)}a:focus-visible{outline:3px solid var(--link);outline-offset:2px}\
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;background:var(--paper);padding:.3rem .6rem}\
nav a{display:inline-block;padding:.35rem .6rem .35rem 0}\
.pale{color:var(--pale)}.bad{font-weight:700}.bad::before{content:'! '}\
.wide{overflow-x:auto}.wide+.wide{margin-top:1rem}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
caption{text-align:left;color:var(--pale);white-space:nowrap}\
th,td{padding:.3rem .7rem .3rem 0;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}\
th.num,td.num{text-align:right}tfoot td{font-weight:600}pre{overflow-x:auto;border:1px solid var(--line);padding:.6rem}\
.map{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.8rem;padding:0;list-style:none}\
.map li{border:1px solid var(--line);border-radius:.4rem;padding:.5rem;content-visibility:auto;contain-intrinsic-size:auto 8rem}\
.map a{font-weight:600;display:inline-block;min-height:1.5rem}\
.bar{display:block;height:.8rem;margin:.2rem 0;border:1px solid var(--unknown);border-radius:.15rem;background:var(--free);forced-color-adjust:none}\
.out{background:var(--out)}\
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none;font-size:.9rem}\
.key span{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em;border:1px solid var(--unknown);forced-color-adjust:none}\
figure{margin:1rem 0}figcaption{font-weight:600}\
.chart{display:block;width:100%;max-width:60rem;height:9rem;border:1px solid var(--line);background:var(--paper)}\
.ends{display:flex;justify-content:space-between;max-width:60rem;font-size:.85rem;color:var(--pale)}\
.bars{display:block;width:100%;max-width:44rem;height:auto}.bars text{fill:var(--ink);font:15px sans-serif}\
.bars .line{stroke:var(--ink);stroke-width:2;fill:none}\
.day{display:grid;grid-template-columns:4rem 1fr;align-items:center;max-width:60rem}.day .bar{height:1.1rem}\
@media print{a{color:inherit}.map li,tr,figure{break-inside:avoid}tfoot{display:table-row-group}}";

/// A page in the making.
pub struct Html(String);

impl Html {
    /// With its head, up to the title on the page. `nav`: links to the other pages of a site.
    pub fn new(title: &str, nav: impl FnOnce(&mut Html)) -> Html {
        let mut page = Html(String::new());
        page.raw(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline';base-uri 'none';form-action 'none'\">\
             <link rel=\"icon\" href=\"data:,\"><title>",
        );
        page.text(title).raw("</title><style>").raw(STYLE);
        page.raw("</style></head>\n<body>");
        nav(&mut page);
        page.raw("<main id=\"main\"><h1>").text(title);
        page.raw("</h1>\n");
        page
    }

    /// Markup of this program.
    pub fn raw(&mut self, markup: &'static str) -> &mut Html {
        self.0.push_str(markup);
        self
    }

    /// Any text, escaped.
    pub fn text(&mut self, text: impl Display) -> &mut Html {
        for letter in text.to_string().chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                odd if is_odd(odd) && odd != '\n' => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
        self
    }

    /// Numbers as attributes, behind the value of an attribute; ends the tag.
    pub fn numbers(&mut self, attributes: &[(&'static str, f64)]) {
        self.raw("\"");
        for (name, value) in attributes {
            self.raw(" ")
                .raw(name)
                .raw("=\"")
                .text(format!("{value:.1}"))
                .raw("\"");
        }
        self.raw(">");
    }

    /// A section's title.
    pub fn title(&mut self, title: &str) {
        self.raw("<h2>").text(title).raw("</h2>\n");
    }

    pub fn paragraph(&mut self, text: impl Display) {
        self.raw("<p>").text(text).raw("</p>\n");
    }

    /// A table. Each cell writes itself. Columns after the first `left` are numbers.
    pub fn table(
        &mut self,
        caption: &str,
        heads: &[String],
        left: usize,
        rows: impl IntoIterator<Item = Vec<Cell>>,
        foot: Option<Vec<Cell>>,
    ) {
        self.raw("<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"")
            .text(caption);
        self.raw("\"><table><caption>")
            .text(caption)
            .raw("</caption><thead><tr>");
        for (column, head) in heads.iter().enumerate() {
            self.raw("<th scope=\"col\"").class(column, left);
            self.text(head).raw("</th>");
        }
        self.raw("</tr></thead><tbody>\n");
        for row in rows {
            self.row(row, left);
        }
        self.raw("</tbody>");
        if let Some(foot) = foot {
            self.raw("<tfoot>").row(foot, left);
            self.raw("</tfoot>");
        }
        self.raw("</table></div>\n");
    }

    fn row(&mut self, cells: Vec<Cell>, left: usize) {
        self.raw("<tr>");
        for (column, cell) in cells.into_iter().enumerate() {
            self.raw("<td").class(column, left);
            match cell {
                Cell::Text(text) => self.text(text),
                Cell::Link(to, text) => self
                    .raw("<a href=\"")
                    .text(to)
                    .raw("\">")
                    .text(text)
                    .raw("</a>"),
            };
            self.raw("</td>");
        }
        self.raw("</tr>\n");
    }

    fn class(&mut self, column: usize, left: usize) -> &mut Html {
        self.raw(if column < left { ">" } else { " class=\"num\">" })
    }

    /// Explains colours, which are variables of the style.
    pub fn key(&mut self, parts: impl IntoIterator<Item = (&'static str, impl Display)>) {
        self.raw("<ul class=\"key\">");
        for (colour, words) in parts {
            self.raw("<li><span style=\"background:var(--").raw(colour);
            self.raw(")\"></span>").text(words).raw("</li>");
        }
        self.raw("</ul>\n");
    }

    pub fn end(mut self) -> String {
        self.raw("</main></body></html>\n");
        self.0
    }
}

/// A cell of a table.
pub enum Cell {
    Text(String),
    /// A page of the site and its name.
    Link(String, String),
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of a colour (WCAG 2.2).
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn texts_and_bars_stand_out_on_light_and_dark_screens() {
        let (light, dark) = STYLE
            .split_once("@media(prefers-color-scheme:dark)")
            .unwrap();
        for theme in [light, dark] {
            let colour = |name: &str| {
                let (_, rest) = theme.split_once(&format!("--{name}:")).unwrap();
                &rest[..7]
            };
            let paper = colour("paper");
            // WCAG 2.2: 4.5 for texts, 3 for parts of pictures.
            for (name, least) in [("ink", 7.0), ("pale", 4.5), ("link", 4.5)] {
                assert!(contrast(colour(name), paper) >= least, "{name} on {paper}");
            }
            for name in ["busy", "idle", "warned", "unknown", "changing"] {
                for on in [paper, colour("free")] {
                    assert!(contrast(colour(name), on) >= 3.0, "{name} on {on}");
                }
            }
        }
    }
}
