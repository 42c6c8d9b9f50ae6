//! Converts manual pages to pages of the book, by mandoc.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Whether a file is a manual page: its name ends with the number of its section.
pub(crate) fn is_page(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| end.len() == 1 && end.chars().all(|c| c.is_ascii_digit()))
}

/// Converts a manual page.
pub(crate) fn to_markdown(path: &Path) -> Result<String> {
    let output = Command::new("mandoc")
        .args(["-T", "html", "-O", "fragment"])
        .arg(path)
        .output()
        .context("starting mandoc failed; run `cargo xtask setup`")?;
    let page = path.display();
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr);
        bail!("reading {page} failed: {cause}; correct the page");
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let (name, section) = name
        .and_then(|name| name.rsplit_once('.'))
        .with_context(|| format!("reading {page} failed: its name has no section; rename it"))?;
    let html = String::from_utf8(output.stdout)
        .with_context(|| format!("reading {page} failed: mandoc's answer is not UTF-8"))?;
    Ok(format!("# {name}({section})\n\n{}", body(&html)))
}

/// mandoc's HTML without head and foot, with headings in Markdown, so that the book's search and side bar know the
/// sections. A blank line would end a block of HTML in Markdown, so only headings have blank lines around them.
fn body(html: &str) -> String {
    let html = html.split_once("<div class=\"manual-text\">");
    let html = html.map_or("", |(_, rest)| rest);
    let html = html
        .split_once("<table class=\"foot\">")
        .map_or(html, |(text, _)| text);
    let html = html.trim_end().strip_suffix("</div>").unwrap_or(html);
    let mut text = String::new();
    let mut verbatim = false;
    // mandoc breaks the line of a long heading.
    let mut lines = html.lines();
    while let Some(line) = lines.next() {
        let mut line = line.to_owned();
        while line.contains("<h") && !line.contains("</h") {
            let Some(next) = lines.next() else { break };
            line = format!("{line} {}", next.trim_start());
        }
        let start = line.trim_start();
        if let Some(title) = heading(start) {
            text.push_str(&title);
        } else if start.contains("<section") || start == "</section>" {
            continue;
        } else if verbatim && line.is_empty() {
            text.push_str("<span></span>\n");
        } else if !start.is_empty() {
            text.push_str(if verbatim { &line } else { start });
            text.push('\n');
        }
        verbatim = (verbatim || line.contains("<pre")) && !line.contains("</pre>");
    }
    linked(&text)
}

/// Converts `<h1 class="Sh" id="NAME"><a class="permalink" href="#NAME">NAME</a></h1>` to a heading.
fn heading(line: &str) -> Option<String> {
    let marks = match line.get(..3)? {
        "<h1" => "##",
        "<h2" => "###",
        _ => return None,
    };
    let title = line.rsplit_once("</a></h")?.0.rsplit_once('>')?.1;
    Some(format!("\n{marks} {title}\n\n"))
}

/// Converts `<b>gpufrac.toml</b>(5)` to a link.
fn linked(text: &str) -> String {
    let mut parts = text.split("<b>gpufrac");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let page = part.split_once("</b>(").and_then(|(name, rest)| {
            let (section, rest) = rest.split_once(')')?;
            let plain = !name.contains(['<', ' ']) && section.len() == 1;
            plain.then_some((name, section, rest))
        });
        match page {
            Some((name, section, rest)) => linked.push_str(&format!(
                "<a href=\"gpufrac{name}.{section}.html\"><b>gpufrac{name}</b>({section})</a>{rest}"
            )),
            None => linked.push_str(&format!("<b>gpufrac{part}")),
        }
    }
    linked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_headings_links_and_no_blank_line_in_a_block() {
        let html = "<table class=\"head\">\n</table>\n<div class=\"manual-text\">\n<section class=\"Sh\">\n\
                    <h1 class=\"Sh\" id=\"SEE_ALSO\"><a class=\"permalink\" href=\"#SEE_ALSO\">SEE\n  ALSO</a></h1>\n\
                    <p class=\"Pp\">See <b>gpufrac.toml</b>(5) and <b>gpufrac check</b>.\n    More</p>\n\
                    <pre>one\n\n  two</pre>\n</section>\n</div>\n<table class=\"foot\">\n</table>\n";
        assert_eq!(
            body(html),
            "\n## SEE ALSO\n\n<p class=\"Pp\">See <a href=\"gpufrac.toml.5.html\"><b>gpufrac.toml</b>(5)</a> and \
             <b>gpufrac check</b>.\nMore</p>\n<pre>one\n<span></span>\n  two</pre>\n"
        );
    }

    #[test]
    fn a_manual_page_is_known_by_its_section() {
        assert!(is_page(Path::new("docs/man/gpufrac.toml.5")));
        assert!(!is_page(Path::new("etc/gpufrac.toml")));
    }
}
