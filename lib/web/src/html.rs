//! Writes pages. Markup is fixed in this program (`&'static str`); every other text is escaped.

use std::fmt::Display;

use crate::{Site, text};

/// Colours are variables, once for light and once for dark screens; the test of contrasts reads them from here.
pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--pale:#57606a;--line:#d0d7de;--paper:#ffffff;--link:#0550ae;\
--busy:#1a7f37;--idle:#9a6700;--warned:#cf222e;--unknown:#6e7781;--changing:#0969da;--free:#e4e8ec}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--pale:#9da7b1;--line:#3d444d;--paper:#0d1117;--link:#79c0ff;\
--busy:#3fb950;--idle:#d29922;--warned:#f85149;--unknown:#8b949e;--changing:#58a6ff;--free:#262c36}}\
*{box-sizing:border-box}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:80rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}\
h1{font-size:1.5rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0}\
a{color:var(--link)}a:focus-visible{outline:3px solid var(--link);outline-offset:2px}\
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;background:var(--paper);padding:.3rem .6rem}\
nav a{display:inline-block;padding:.35rem .6rem .35rem 0}\
.pale{color:var(--pale)}.bad{font-weight:700}.bad::before{content:'! '}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
caption{text-align:left;color:var(--pale);white-space:nowrap}\
th,td{padding:.3rem .7rem .3rem 0;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}\
td.long{white-space:normal}\
.map{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.8rem;padding:0;list-style:none}\
.map li{border:1px solid var(--line);border-radius:.4rem;padding:.5rem;content-visibility:auto;contain-intrinsic-size:auto 8rem}\
.map a{font-weight:600;display:inline-block;min-height:1.5rem}\
.bar{display:block;height:.8rem;margin:.2rem 0;border:1px solid var(--unknown);border-radius:.15rem;background:var(--free);forced-color-adjust:none}\
.out{background:repeating-linear-gradient(135deg,var(--free) 0 4px,var(--unknown) 4px 6px)}\
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none;font-size:.9rem}\
.key span{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em;border:1px solid var(--unknown);forced-color-adjust:none}\
figure{margin:1rem 0}figcaption{font-weight:600}\
.chart{display:block;width:100%;max-width:60rem;height:9rem;border:1px solid var(--line);background:var(--paper)}\
.ends{display:flex;justify-content:space-between;max-width:60rem;font-size:.85rem;color:var(--pale)}\
.day{display:grid;grid-template-columns:4rem 1fr;align-items:center;max-width:60rem}.day .bar{height:1.1rem}\
@media print{a{color:inherit}.map li{break-inside:avoid}}";

/// A page in the making.
pub struct Html(String);

impl Html {
    /// With its head, up to the title on the page. `depth`: folders between the site's own and that of the page.
    pub fn new(site: &Site, title: &str, depth: usize) -> Html {
        let mut page = Html(String::new());
        page.raw(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline';base-uri 'none';form-action 'none'\">\
             <link rel=\"icon\" href=\"data:,\"><title>",
        );
        page.text(title).raw("</title><style>").raw(STYLE);
        page.raw("</style></head>\n<body><a class=\"skip\" href=\"#main\">Skip to the content</a>\n<nav aria-label=\"Site\">");
        let up = if depth == 0 { "" } else { "../" };
        page.raw("<a href=\"")
            .raw(up)
            .raw("index.html\">Cluster</a> <a href=\"");
        page.raw(up)
            .raw("jobs.html\">Jobs</a></nav>\n<main id=\"main\"><h1>");
        page.text(title).raw("</h1>\n<p class=\"pale\">Written ");
        page.text(text::utc(site.now))
            .raw(" by gpufrac ")
            .text(&site.build);
        page.raw(".</p>\n");
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
                // These change the direction of the text around them, or are not allowed in a page.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.0.push('\u{fffd}'),
                control if control.is_control() && control != '\n' => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
        self
    }

    /// A section's title.
    pub fn title(&mut self, title: &str) {
        self.raw("<h2>").text(title).raw("</h2>\n");
    }

    pub fn paragraph(&mut self, text: impl Display) {
        self.raw("<p>").text(text).raw("</p>\n");
    }

    /// A table. Each cell writes itself.
    pub fn table(&mut self, caption: &str, heads: &[&str], rows: impl Iterator<Item = Vec<Cell>>) {
        self.raw("<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"")
            .text(caption);
        self.raw("\"><table><caption>")
            .text(caption)
            .raw("</caption><thead><tr>");
        for head in heads {
            self.raw("<th scope=\"col\">").text(head).raw("</th>");
        }
        self.raw("</tr></thead><tbody>\n");
        for row in rows {
            self.raw("<tr>");
            for cell in row {
                self.raw("<td>");
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
        self.raw("</tbody></table></div>\n");
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
